"""Each law holds for the Loader and fails for a loader that breaks it."""

import functools
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from toy import Numbered, ToyLoader

import loaderkit as lk
from loaderkit.testing import (
    LawError,
    assert_cost_independent_of_size,
    assert_elastic,
    assert_epochs_differ,
    assert_exactly_once,
    assert_generators_untouched,
    assert_resumable,
    assert_small_state,
    assert_workers_dont_matter,
)

_entropy = np.random.default_rng()


def make_loader(**changes: Any) -> lk.Loader:
    return lk.Loader(Numbered(23), **{"batch_size": 3, "shuffle": True, "seed": 5} | changes)


class TestLoaderKeepsThem:
    def test_exactly_once(self) -> None:
        assert_exactly_once(make_loader, worlds=(1, 2, 3, 4), epochs=2)
        assert_exactly_once(functools.partial(make_loader, num_workers=2), epochs=2)

    def test_resumable(self) -> None:
        assert_resumable(make_loader)
        assert_resumable(make_loader, epochs=1, world_size=3)

    def test_resumable_with_workers(self) -> None:
        workers = functools.partial(make_loader, num_workers=2, batch_size=6)
        assert_resumable(workers, stops=(1, 2), world_size=2, consumers=("trainer",))
        persistent = functools.partial(make_loader, num_workers=2, persistent_workers=True, batch_size=6)
        assert_resumable(persistent, epochs=1, stops=(1, 4))

    @pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
    def test_workers_dont_matter(self) -> None:
        assert_workers_dont_matter(make_loader, workers=(0, 1, 2, 4))

    @pytest.mark.slow
    def test_start_methods_dont_matter(self) -> None:
        assert_workers_dont_matter(
            make_loader, workers=(0, 1), start_methods=("forkserver", "spawn"), persistent=(True,)
        )

    def test_elastic(self) -> None:
        settings = ({"world_size": 1}, {"world_size": 2, "batch_size": 4}, {"world_size": 3, "batch_size": 2})
        assert_elastic(functools.partial(_sized, 36), settings)
        assert_elastic(functools.partial(_sized, 36), ({"num_workers": 2}, {"num_workers": 0}), stops=(1, 5, 12))

    def test_small_state(self) -> None:
        assert_small_state(make_loader, worlds=(1, 2, 4))

    def test_epochs_differ(self) -> None:
        assert_epochs_differ(make_loader)
        # The same order, with new augmentations.
        assert_epochs_differ(functools.partial(make_loader, shuffle=False))

    def test_generators_untouched(self) -> None:
        assert_generators_untouched(make_loader)
        assert_generators_untouched(functools.partial(make_loader, num_workers=2))

    def test_cost_independent_of_size(self) -> None:
        assert_cost_independent_of_size(_of_range, sizes=(1_000, 10**12))


def _sized(size: int, **changes: Any) -> lk.Loader:
    return lk.Loader(Numbered(size), **{"batch_size": 3, "shuffle": True} | changes)


def _of_range(size: int) -> lk.Loader:
    return lk.Loader(range(size), batch_size=32, shuffle=True)


LAWS: dict[str, Any] = {
    "once": assert_exactly_once,
    "once over ranks": functools.partial(assert_exactly_once, worlds=(1, 2)),
    "resume": assert_resumable,
    "resume on ranks": functools.partial(assert_resumable, world_size=2),
    "workers": assert_workers_dont_matter,
    "elastic": functools.partial(assert_elastic, settings=({"num_workers": 1}, {"num_workers": 2}, {"batch_size": 1})),
    "state": assert_small_state,
    "state on ranks": functools.partial(assert_small_state, worlds=(2,)),
    "epochs": assert_epochs_differ,
    "generators": assert_generators_untouched,
}

FAULTS = [
    ("once", "skips", r"epoch 0: samples \d+, \d+ never come\.$"),
    ("once", "repeats", r"epoch 0: samples \d+, \d+ come twice, samples \d+, \d+ never come\. For instance sample \d+ in batch \d and batch 5\."),
    ("once", "lengthens", r"the loader has len\(\) = 7, but epoch 0 has 6 batches"),
    ("once over ranks", "uneven", r"epoch 0 over 2 ranks: samples \d+, \d+ never come"),
    ("resume", "forgets where", r"resume after 1 batch of epoch 0, as a Trainer draws: batch 1 of epoch 0 differs: wanted samples (\d+), (\d+), got \d+, \d+\. Over the epoch samples \d+, \d+ come twice, samples \d+, \d+ never come\."),
    ("resume", "state one ahead", r"resume after 1 batch of epoch 0, .* batch 1 of epoch 0 differs: .* Over the epoch samples \d+, \d+ never come\.$"),
    ("resume", "draws from torch", r"resume after 1 batch .* the samples are right, but their content differs: batch\['draw'\]\[0\] is 0\.\d+, wanted 0\.\d+"),
    ("resume", "raises on resume", r"resume after 1 batch of epoch 0 raised RuntimeError: the shard is gone"),
    ("resume", "empty epoch at the edge", r"resume after 6 batches of epoch 0, as a Trainer draws: epoch 1 has 0 batches, wanted 6\. Over the epoch samples"),
    ("resume on ranks", "state of the rank", r"resume after 1 batch of epoch 0 \(rank 1 of 2\).* come twice, .* All ranks loaded rank 0's state"),
    ("workers", "order of workers", r"with 2 workers, epoch 0, batch 0 is not that of the run with 0 workers: wanted samples \d+, \d+, got"),
    ("workers", "draws by persistence", r"with 1 worker, persistent_workers=True, epoch 0, batch 0 .*: the samples are right"),
    ("elastic", "forgets where", r"over an epoch of 1 batch with 1 worker, then 2 workers: samples .* come twice"),
    ("elastic", "order of workers", r"over an epoch of 1 batch with 1 worker, then 2 workers: sample"),
    ("elastic", "raises with 2 workers", r"resume with 2 workers \(after 1 batch with 1 worker\) raised AssertionError with no message"),
    ("state", "state with a tensor", r"the state after 0 batches has a Tensor at state\['position'\], wanted plain ints"),
    ("state", "state with an int key", r"has the key 7 in state\['seen'\]"),
    ("state", "state with a list of all", r"is [\d,]+ bytes of JSON, wanted at most 1,024; state\['order'\] alone has [\d,]+"),
    ("state on ranks", "state of the rank", r"after 0 batches the state of rank 1 of 2 is not that of rank 0.*state\['rank'\] is 1, wanted 0"),
    ("epochs", "same order", r"epoch 1 repeats epoch 0: 6 batches, all the same bit for bit"),
    ("generators", "makes with torch", r"making the loader moved torch's global generator"),
    ("generators", "begins with random", r"drawing batch 0 moved random's global generator"),
    ("generators", "draws with numpy", r"drawing batch 0 moved numpy's global generator"),
]  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_a_faultless_loader_keeps_each_law(law: str) -> None:
    LAWS[law](ToyLoader)


@pytest.mark.parametrize(("law", "fault", "message"), FAULTS)
def test_each_law_can_fail(law: str, fault: str, message: str) -> None:
    with pytest.raises(LawError, match=message):
        LAWS[law](functools.partial(ToyLoader, fault))


def test_each_law_is_shown_to_fail() -> None:
    assert {law for law, _, _ in FAULTS} == set(LAWS)


def test_cost_that_grows_is_found() -> None:
    with pytest.raises(LawError, match=r"first batch of 1,000,000 samples takes .* bytes of memory, of 1,000 samples"):
        assert_cost_independent_of_size(lambda size: list(range(size)), sizes=(1_000, 1_000_000))


def test_time_that_grows_is_found() -> None:
    def make_slow(size: int) -> list[int]:
        time.sleep(size / 1e4)
        return [1]

    with pytest.raises(LawError, match=r"first batch of 2,000 samples takes 0\.\d+ s, of 1 samples 0\.\d+ s: it grows"):
        assert_cost_independent_of_size(make_slow, sizes=(1, 2_000), repeats=1)


def test_a_law_leaves_the_caller_s_generators_alone() -> None:
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    wanted = torch.rand(()).item(), np.random.rand(), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    assert_resumable(make_loader, epochs=1, stops=(1,))
    assert_exactly_once(make_loader)
    assert (torch.rand(()).item(), np.random.rand(), random.random()) == wanted


def test_a_loader_without_batches_is_refused() -> None:
    with pytest.raises(LawError, match="no batches: nothing to resume"):
        assert_resumable(list)


def test_a_stop_beyond_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match="stop after batch 9, wanted at most 8, the batches of 1 epochs"):
        assert_resumable(make_loader, epochs=1, stops=(9,))


def test_two_runs_that_differ_are_told_apart_from_a_bad_resume() -> None:
    with pytest.raises(
        LawError, match=r"a second run from the same seeds, .* batch 0 of epoch 0 differs: .* Two equal runs"
    ):
        assert_resumable(lambda: [[_entropy.random()]])


def test_batches_from_global_seeds_are_told_apart_from_a_bad_state() -> None:
    with pytest.raises(LawError, match=r"resume after 0 batches of epoch 0, .* depend on the process's global seeds"):
        assert_resumable(functools.partial(ToyLoader, "draws from torch"), stops=(0,))


def test_elastic_needs_two_settings() -> None:
    with pytest.raises(ValueError, match="1 settings, wanted at least two"):
        assert_elastic(make_loader, [{"num_workers": 1}])


def test_the_samples_to_expect_have_to_be_known() -> None:
    with pytest.raises(ValueError, match=r"cannot tell which samples to expect. Give samples="):
        assert_exactly_once(lambda: [[1]])
    assert_exactly_once(lambda: [["a", "b"], ["c"]], samples="abc")
    with pytest.raises(LawError, match="sample d is not in the data"):
        assert_exactly_once(lambda: [["a", "b"], ["c", "d"]], samples="abc")


def test_a_loader_may_write_each_batch_over_the_last() -> None:
    def reusing(numbers: list[int]) -> Iterator[torch.Tensor]:
        buffer = torch.zeros(2, dtype=torch.int64)
        for start in range(0, len(numbers), 2):
            yield buffer.copy_(torch.tensor(numbers[start : start + 2]))

    assert_exactly_once(lambda: reusing([0, 1, 2, 3]), samples=4)
    with pytest.raises(LawError, match="sample 3 comes twice, sample 2 never comes"):
        assert_exactly_once(lambda: reusing([0, 1, 3, 3]), samples=4)
