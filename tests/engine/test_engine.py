"""Every engine makes the same batches, bit for bit, also over resumes."""

import functools
import gc
import itertools
import multiprocessing
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from drawing import Drawing, drawing_collate, equal, generator_states, take
from forked import in_fork
from leftovers import nothing_left

import loaderkit as lk

pytestmark = [
    pytest.mark.filterwarnings("ignore:Loader. . workers for"),  # small data leaves some idle
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
]


engine: Any = "torch"
in_turn = False  # a shard order makes the ring deal batches in turn


@pytest.fixture(params=["torch", "ring", pytest.param("ring in turn", marks=pytest.mark.slow)], autouse=True)
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with torch's workers and with both ways in which the ring deals batches."""
    monkeypatch.setattr(f"{__name__}.engine", request.param.split()[0])
    monkeypatch.setattr(f"{__name__}.in_turn", request.param == "ring in turn")


def make_loader(size: int, batch_size: int | None, workers: int = 0, **settings: Any) -> lk.Loader:
    collate = drawing_collate if batch_size else None
    order: dict[str, Any] = {"order": lk.ShardOrder([size], seed=4, block=1)} if in_turn else {"shuffle": True}
    settings = order | {"seed": 4, "collate_fn": collate, "engine": engine if workers else "auto"} | settings
    return lk.Loader(Drawing(size), batch_size, num_workers=workers, **settings)


def epochs(loader: lk.Loader, count: int = 2) -> list[list[Any]]:
    return [list(loader) for _ in range(count)]


@pytest.mark.each_value
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_workers_do_not_change_a_batch(batch_size: int | None, workers: int, persistent: bool) -> None:
    """Dataset and collate draw from torch, numpy, random and sample_rng()."""
    for size in (1, 7, 40):
        alone = epochs(make_loader(size, batch_size))
        assert [len(epoch) for epoch in alone] == [-(-size // (batch_size or 1))] * 2
        found = epochs(make_loader(size, batch_size, workers, persistent_workers=persistent))
        assert equal(found, alone)


@pytest.mark.parametrize("seed", [-(2**70), 2**64])
def test_any_integer_is_a_seed_with_workers_too(seed: int) -> None:
    """Torch's own generators refuse these seeds."""
    alone = list(make_loader(10, 3, seed=seed))
    assert len(alone) == 4
    assert equal(list(make_loader(10, 3, 1, seed=seed, multiprocessing_context="fork")), alone)


def test_the_torch_engine_without_workers_gives_the_same() -> None:
    alone = epochs(make_loader(12, 5))
    assert equal(epochs(make_loader(12, 5, engine="torch")), alone)
    assert len(alone[0]) == 3


def first_of_two(batch: list[Any]) -> Any:
    return batch[0]


@pytest.mark.parametrize(
    ("dataset", "path"),
    [
        (lk.RecordDataset(range(8), transform=lambda index: index), "dataset.transform"),
        (
            lk.RecordDataset(range(8), transform=functools.partial(first_of_two, lambda: None)),
            r"dataset.transform.args\[0\]",
        ),
        (lk.StreamDataset(["a"], lambda shard, start: iter(range(8))), "stream"),
    ],
    ids=["a lambda", "a lambda in a partial", "a stream"],
)
@pytest.mark.filterwarnings("ignore:Got pickle error")  # torch's own
def test_what_cannot_be_sent_to_a_worker_is_named_by_its_path(dataset: Any, path: str) -> None:
    chosen = {} if isinstance(dataset, lk.StreamDataset) else {"engine": engine}
    loader = lk.Loader(dataset, 4, num_workers=1, multiprocessing_context="spawn", **chosen)
    with pytest.raises(
        (AttributeError, pickle.PicklingError), match=rf"(?s)pickle.*{path}.* not pickle, and what .*'spawn'"
    ):
        next(iter(loader))


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_the_way_of_starting_workers_does_not_change_a_batch(context: str) -> None:
    alone = epochs(make_loader(12, 5))
    assert [len(epoch) for epoch in alone] == [3, 3]
    settings: dict[str, Any] = {"multiprocessing_context": context, "persistent_workers": True}
    loader = make_loader(12, 5, 1 if context == "spawn" else 2, **settings)  # a spawned one imports torch
    first, state = take(loader, 2)
    rest = list(itertools.islice(loader, 0))  # an iterator that is never asked starts nothing
    resumed = make_loader(12, 5, 1, **settings)
    resumed.load_state_dict(state)
    rest += list(resumed) + list(resumed)
    assert equal([first + rest[:1], rest[1:]], alone)


@pytest.mark.each_value
@pytest.mark.parametrize("stop", range(1, 10))
@pytest.mark.parametrize(("before", "after"), [(2, 0), (1, 3)])
def test_a_resume_with_other_workers_continues_bit_for_bit(before: int, after: int, stop: int) -> None:
    """It does so at every stop in two epochs, also between them."""
    whole = [batch for epoch in epochs(make_loader(13, 3), 3) for batch in epoch]
    assert len(whole) == 15
    first, state = take(make_loader(13, 3, before), stop)
    resumed = make_loader(13, 3, after)
    resumed.load_state_dict(state)
    rest, _ = take(resumed, 10 - stop)
    assert equal(first + rest, whole[:10])


def test_two_resumes_in_a_row_with_0_2_and_3_workers() -> None:
    whole = [batch for epoch in epochs(make_loader(13, 2)) for batch in epoch]
    assert len(whole) == 14
    for stop in range(1, 6):
        found, state = take(make_loader(13, 2, 0), stop)
        for workers, count in ((2, 3), (3, 14 - stop - 3)):
            loader = make_loader(13, 2, workers, persistent_workers=True)
            loader.load_state_dict(state)
            batches, state = take(loader, count)
            found += batches
        assert equal(found, whole)


@pytest.mark.parametrize(("workers", "batch_size", "world"), [(0, 5, 1), (2, 2, 1), (0, 4, 3), (2, 1, 2)])
def test_each_samples_augmentation_is_the_same_in_other_batches_and_ranks(
    workers: int, batch_size: int, world: int
) -> None:
    def by_index(batches: list[Any]) -> dict[int, list[float]]:
        return {int(i): row.tolist() for batch in batches for i, row in zip(batch[0], batch[1], strict=True)}

    whole = by_index(list(make_loader(23, 3)))
    assert sorted(whole) == list(range(23))
    first, state = take(make_loader(23, 3), 3)
    rest = []
    for rank in range(world):
        loader = make_loader(23, batch_size, workers, world=lk.World(rank, world))
        loader.load_state_dict(state)
        rest += list(loader)
    assert sum(len(batch[0]) for batch in first + rest) == 23
    assert by_index(first + rest) == whole


def left_in_the_middle(loader: lk.Loader) -> Iterator[Any]:
    for batch in loader:
        yield batch
        break


@pytest.mark.each_value
@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_left_in_the_middle_leaves_no_batches_behind(persistent: bool) -> None:
    alone = epochs(make_loader(12, 3), 3)
    loader = make_loader(12, 3, 2, persistent_workers=persistent)
    assert equal(list(left_in_the_middle(loader)), alone[0][:1])
    assert equal(list(loader), alone[1])
    assert equal(list(left_in_the_middle(loader)), alone[2][:1])
    loader.seek(epoch=1)
    assert equal(list(loader), alone[1])
    loader.close()
    assert equal(list(loader), alone[2])


def count_up(shard: str, start: int) -> Iterator[int]:
    return iter(range(start, 60))


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["starts again", "persists", "stream"])
@nothing_left()
def test_a_forked_process_does_not_disturb_its_parent(kind: str) -> None:
    if kind == "stream":
        stream = lk.StreamDataset(["a", "b", "c", "d"], count_up, lanes=4)
        loader = lk.Loader(stream, 4, num_workers=2, timeout=60)
    else:
        loader = make_loader(200, 4, 2, persistent_workers=kind == "persists", timeout=60)
    whole = list(loader)
    assert len(whole) > 40
    loader.seek(epoch=0)
    batches = iter(loader)
    held = [next(batches), next(batches)]
    assert equal(held, whole[:2])

    def drop_and_use() -> bool:
        nonlocal held, batches
        with pytest.raises(RuntimeError, match=r"belongs to process .* Call iter.loader. in this process"):
            list(batches)
        del held, batches
        loader.seek(epoch=0)
        return equal(list(loader), whole)

    assert in_fork(drop_and_use)
    assert equal(held + list(batches), whole)
    loader.close()


def test_workers_end_with_a_pass_that_has_a_timeout() -> None:
    """The thread that reads ends them, before its loop ends, and not the thread that watches the time."""
    before = set(multiprocessing.active_children())
    stream = lk.StreamDataset(["a", "b", "c", "d"], count_up, lanes=4)
    batches = iter(lk.Loader(stream, 4, num_workers=2, timeout=60))
    next(batches)
    assert len(set(multiprocessing.active_children()) - before) == 2
    for _ in batches:
        pass
    assert set(multiprocessing.active_children()) == before


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("is_closed", [False, True])
def test_workers_end_with_a_pass_at_once(is_ahead: bool, is_closed: bool) -> None:
    """They do not wait for the garbage collector: it would take 5 s for each of torch's workers."""
    before = set(multiprocessing.active_children())
    loader = make_loader(60, 3, 2)
    passed = iter(lk.DeviceLoader(loader, "cpu") if is_ahead else loader)
    next(passed)
    assert len(set(multiprocessing.active_children()) - before) == 2
    gc.disable()
    try:
        if is_closed:
            loader.close()
        else:
            del loader, passed
        ends = time.monotonic() + 3
        while (left := set(multiprocessing.active_children()) - before) and time.monotonic() < ends:
            time.sleep(0.01)
    finally:
        gc.enable()
    assert not left


def test_workers_end_when_the_epoch_ends_or_is_left() -> None:
    before = set(multiprocessing.active_children())
    loader = make_loader(12, 3, 2)
    assert len(list(loader)) == 4
    assert set(multiprocessing.active_children()) <= before
    assert len(list(left_in_the_middle(loader))) == 1
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_iterating_leaves_the_callers_generators_as_they_were(workers: int, persistent: bool) -> None:
    torch.manual_seed(1)
    loader = make_loader(12, 3, workers, persistent_workers=persistent and bool(workers))
    before = generator_states()
    batches = 0
    for _ in range(2):
        for _batch in loader:
            assert generator_states() == before
            batches += 1
    assert batches == 8
    assert generator_states() == before


class Broken(Drawing):
    def __getitem__(self, index: int) -> Any:
        raise KeyError(index)


def test_workers_end_with_an_error() -> None:
    """They do not wait for the garbage collector."""
    before = set(multiprocessing.active_children())
    loader = lk.Loader(Broken(12), 3, num_workers=2, engine=engine)
    with pytest.raises(KeyError):
        next(iter(loader))
    assert set(multiprocessing.active_children()) <= before


def mark_worker(worker_id: int) -> None:
    torch.set_num_threads(1 + worker_id)  # seen by the dataset, as worker_init_fn's work is


class Threads:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return torch.get_num_threads()


def test_worker_settings_reach_the_workers() -> None:
    settings: dict[str, Any] = {"worker_init_fn": mark_worker, "prefetch_factor": 3, "timeout": 60, "engine": engine}
    found = torch.cat(list(lk.Loader(Threads(), 1, num_workers=2, **settings))).tolist()
    assert len(found) == 4
    assert set(found) <= {1, 2}
    if engine == "torch":  # which deals batches in turn
        assert found == [1, 2, 1, 2]


class Parallel:
    """Its samples are sums of whole numbers, which torch shares among its threads."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(1 << 20).add(index).sum()


def test_workers_do_not_wait_for_the_threads_of_their_parent() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        alone = list(lk.Loader(Parallel(), 2))  # starts OpenMP's threads, which a forked process has not
        loader = lk.Loader(Parallel(), 2, num_workers=2, engine=engine, multiprocessing_context="fork", timeout=60)
        assert len(alone) == 2
        assert equal(list(loader), alone)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
