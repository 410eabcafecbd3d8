"""The functions of lk.testing find the known faults of other loaders, one test for each fault."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from toy import Numbered

import loaderkit as lk
from loaderkit.testing import (
    LawError,
    assert_cost_independent_of_size,
    assert_elastic,
    assert_epochs_differ,
    assert_exactly_once,
    assert_generators_untouched,
    assert_no_private_generators,
    assert_resumable,
    assert_small_state,
    assert_workers_dont_matter,
)

# torchdata 0.11 calls it with every StatefulDataLoader.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


class Indices(Numbered):
    """Samples that are their own index, without random numbers."""

    def __getitem__(self, index: int) -> Any:
        return index


class Stream(IterableDataset[int]):
    """Yields 0 to size - 1 and has no length; each of n workers yields every n-th number."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(self.size) if info is None else range(info.id, self.size, info.num_workers)


class CountingStream(Stream):
    """A Stream with a state: the number of samples that it yielded."""

    done = 0

    def __iter__(self) -> Iterator[int]:
        mine = list(super().__iter__())
        while self.done < len(mine):
            self.done += 1
            yield mine[self.done - 1]
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


class RankStream(IterableDataset[int]):
    """Yields a rank's share of 0 to size - 1, with a state: the next number."""

    def __init__(self, size: int, world: lk.World) -> None:
        self.size, self.world, self.at = size, world, world.rank

    def __len__(self) -> int:
        return self.size // self.world.size

    def __iter__(self) -> Iterator[int]:
        while self.at < self.size:
            self.at += self.world.size
            yield self.at - self.world.size
        self.at = self.world.rank

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class SeededStream(IterableDataset[dict[str, Any]]):
    """Shuffles by its worker's seed."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        assert info is not None
        for index in np.random.default_rng(info.seed).permutation(12):
            yield {"index": int(index)}


class Noisy:
    """Augments with a private generator."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "noise": self.rng.random()}


def distributed(world: lk.World) -> Any:
    """Return the loader that Lightning makes from `StatefulDataLoader(..., shuffle=True)` under DDP."""
    data = Indices(12)
    sampler: Any = DistributedSampler(data, world.size, world.rank, shuffle=True)  # type: ignore[arg-type]
    return StatefulDataLoader(data, batch_size=2, sampler=sampler)


def test_dataloader_replays_the_start_of_the_epoch() -> None:
    message = (
        r"resume after 1 batch of epoch 0, as a Trainer draws: batch 1 of epoch 0 differs: wanted samples 2, 3, got 0, 1\. "
        r"Over the epoch samples 0, 1 come twice, samples 10, 11 never come\. The loader has no state_dict\(\)"
    )
    with pytest.raises(LawError, match=message):
        assert_resumable(lambda: DataLoader(Indices(12), 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_without_len_skips_a_batch(workers: int) -> None:
    def make() -> Any:
        return StatefulDataLoader(CountingStream(12), batch_size=2, num_workers=workers)

    with pytest.raises(
        LawError, match=r"Over the epoch samples .* never come\. The loader has no len\(\): a Trainer then"
    ):
        assert_resumable(make, epochs=1)
    # The cause is Lightning's prefetching: a for loop loses nothing.
    assert_resumable(make, epochs=1, consumers=("loop",), stops=(1, 2, 3))


def test_a_second_resume_of_a_stream_without_a_state_skips_batches() -> None:
    def make() -> Any:
        return StatefulDataLoader(Stream(12), batch_size=2)

    # torchdata counts the batches that it replays a second time.
    message = (
        r"second resume, after 2 batches of epoch 0, .* wanted samples 4, 5, got 6, 7\. .* samples 4, 5 never come"
    )
    with pytest.raises(LawError, match=message):
        assert_resumable(make, epochs=1, consumers=("loop",), stops=(1,))


def test_rank_0_state_puts_rank_1_on_its_data() -> None:
    def make(world: lk.World) -> Any:
        return StatefulDataLoader(RankStream(12, world), batch_size=2)

    message = (
        r"resume after 1 batch of epoch 0 \(rank 1 of 2\), .* batch 1 of epoch 0 differs: wanted samples 5, 7, got 4, 6\. "
        r"Over the epoch samples 4, 6, 8, 10 come twice, samples 5, 7, 9, 11 never come\. All ranks loaded rank 0's state"
    )
    with pytest.raises(LawError, match=message):
        assert_resumable(make, epochs=1, stops=(1,), world_size=2)


def test_distributed_shuffle_repeats_and_omits_in_the_second_epoch() -> None:
    message = (
        r"resume after 1 batch of epoch 1 \(rank . of 2\), as a Trainer draws: batch 1 of epoch 1 differs: .*"
        r"Over the epoch sample.* twice, sample.* never come\."
    )
    with pytest.raises(LawError, match=message):
        assert_resumable(distributed, stops=(4,), world_size=2)


def test_distributed_shuffle_is_right_in_a_for_loop() -> None:
    assert_resumable(distributed, consumers=("loop",), world_size=2)


def test_distributed_shuffle_resumes_an_epochs_end_into_an_epoch_of_0_batches() -> None:
    with pytest.raises(LawError, match=r"resume after 3 batches of epoch 0 .* epoch 1 has 0 batches, wanted 3\."):
        assert_resumable(distributed, stops=(3,), world_size=2)


def test_stateful_dataloader_refuses_other_workers_without_a_message() -> None:
    def make(num_workers: int) -> Any:
        return StatefulDataLoader(Indices(12), batch_size=2, num_workers=num_workers)

    message = r"resume with 2 workers \(after 1 batch with 1 worker\) raised AssertionError with no message"
    with pytest.raises(LawError, match=message):
        assert_elastic(make, [{"num_workers": 1}, {"num_workers": 2}])


def test_dataloader_is_not_elastic() -> None:
    message = (
        r"over an epoch of 1 batch with batch_size=2, then batch_size=3: samples 0, 1 come twice\. The loader has no"
    )
    with pytest.raises(LawError, match=message):
        assert_elastic(lambda batch_size: DataLoader(Indices(12), batch_size), [{"batch_size": 2}, {"batch_size": 3}])


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentations_differ_after_a_resume(workers: int) -> None:
    message = r"the samples are right, but their content differs: batch\['draw'\]\[0\] is 0\.\d+, wanted 0\.\d+"
    with pytest.raises(LawError, match=message):
        assert_resumable(lambda: StatefulDataLoader(Numbered(12), batch_size=2, num_workers=workers), stops=(2,))


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_augmentations_differ_with_the_workers(kind: Any) -> None:
    message = r"with 2 workers, epoch 0, batch 1 is not that of the run with 1 worker: the samples are right"
    with pytest.raises(LawError, match=message):
        assert_workers_dont_matter(lambda **kw: kind(Numbered(12), batch_size=2, **kw), workers=(1, 2), epochs=1)


def test_persistent_workers_repeat_the_epoch() -> None:
    def make(persistent: bool) -> Any:
        return DataLoader(SeededStream(), 2, num_workers=1, persistent_workers=persistent)

    assert_epochs_differ(lambda: make(False))
    with pytest.raises(LawError, match=r"epoch 1 repeats epoch 0: 6 batches, all the same bit for bit"):
        assert_epochs_differ(lambda: make(True))


def test_a_private_generator_draws_the_same_in_every_worker() -> None:
    batches = list(DataLoader(Noisy(), 3, num_workers=2))
    assert torch.equal(batches[0]["noise"], batches[1]["noise"])
    with pytest.raises(
        LawError, match=r"dataset\.rng is a random generator that the dataset keeps: .*loaderkit\.sample_rng"
    ):
        assert_no_private_generators(Noisy())


def test_a_private_generator_breaks_the_law_of_workers_of_a_dataloader_only() -> None:
    with pytest.raises(LawError, match=r"batch 1 is not that of .*: the samples are right, but .*\['noise'\]"):
        assert_workers_dont_matter(lambda **kw: DataLoader(Noisy(), 3, **kw), workers=(1, 2), persistent=(False,))
    assert_workers_dont_matter(
        lambda **kw: lk.Loader(Noisy(), 3, engine="torch", **kw), workers=(1, 2), persistent=(False,)
    )


def test_random_sampler_costs_more_for_more_samples() -> None:
    with pytest.raises(
        LawError, match=r"first batch of 1,000,000 samples takes .* of 1,000 .*: it grows with the data"
    ):
        assert_cost_independent_of_size(
            lambda size: DataLoader(range(size), 32, shuffle=True), sizes=(1_000, 1_000_000)
        )


def test_dataloader_shares_the_trainers_generator() -> None:
    with pytest.raises(LawError, match=r"iter\(loader\) moved torch's global generator"):
        assert_generators_untouched(lambda: DataLoader(Indices(12), 2))


def test_stateful_dataloader_state_is_not_plain() -> None:
    with pytest.raises(LawError, match=r"has a Tensor at state\['_sampler_iter_state'\].*, wanted plain ints"):
        assert_small_state(lambda: StatefulDataLoader(Indices(12), batch_size=2, shuffle=True))


def test_distributed_sampler_repeats_samples_if_ranks_do_not_divide_them() -> None:
    def make(world: lk.World) -> Any:
        data: Any = Indices(7)
        return DataLoader(data, 2, sampler=DistributedSampler(data, world.size, world.rank, shuffle=False))

    with pytest.raises(
        LawError, match=r"epoch 0 over 2 ranks: sample 0 comes twice\. .* batch 0 of rank 0 and batch 1 of rank 1"
    ):
        assert_exactly_once(make, worlds=(2,))


def test_every_worker_reads_the_whole_of_a_plain_stream() -> None:
    class Plain(Stream):
        def __iter__(self) -> Iterator[int]:
            yield from range(self.size)

    with pytest.raises(
        LawError, match=r"epoch 0: samples 0, 1, 2, 3 come twice\. For instance sample 0 in batch 0 and batch 1"
    ):
        assert_exactly_once(lambda: DataLoader(Plain(4), 2, num_workers=2, multiprocessing_context="fork"), samples=4)
