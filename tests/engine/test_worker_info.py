"""What a worker is told: the user's dataset, which `worker_init_fn` may change, and a seed of its own."""

import dataclasses
import gc
import itertools
import math
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

import loaderkit as lk


class Numbers(torch_data.IterableDataset[int]):
    """The example of torch's documentation."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def split_itself(worker_id: int) -> None:
    info: Any = torch_data.get_worker_info()
    data = info.dataset
    each = math.ceil((data.end - data.start) / info.num_workers)
    start = data.start
    data.start = start + info.id * each
    data.end = min(data.start + each, data.end)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_stream_splits_itself_in_worker_init_fn(method: str) -> None:
    def make() -> Any:
        return lk.Loader(Numbers(3, 14), 2, num_workers=2, worker_init_fn=split_itself, multiprocessing_context=method)

    whole = [batch.tolist() for batch in make()]
    assert sorted(itertools.chain(*whole)) == list(range(3, 14))
    first = make()
    batches = iter(first)
    got = [next(batches).tolist() for _ in range(3)]
    again = make()
    again.load_state_dict(first.state_dict())
    assert got + [batch.tolist() for batch in again] == whole
    first.close()


class Squares:
    factor = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        info: Any = torch_data.get_worker_info()
        return torch.tensor([index * self.factor, int(info.dataset is self)])


def set_factor(worker_id: int) -> None:
    info: Any = torch_data.get_worker_info()
    info.dataset.factor = 10


@pytest.mark.parametrize("engine", ["ring", "torch"])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_worker_init_fn_may_change_the_dataset(engine: Any, method: str) -> None:
    loader = lk.Loader(
        Squares(), 3, num_workers=2, engine=engine, worker_init_fn=set_factor, multiprocessing_context=method
    )
    assert torch.cat(list(loader)).tolist() == [[10 * index, 1] for index in range(10)]


def read_one(name: str) -> Iterator[int]:
    info: Any = torch_data.get_worker_info()
    yield int(isinstance(info.dataset, lk.StreamDataset))


def test_a_stream_of_shards_is_told_too() -> None:
    data = lk.StreamDataset(["a", "b"], lk.from_start(read_one), lanes=2)
    assert torch.cat(list(lk.Loader(data, 1, num_workers=2))).tolist() == [1, 1]


def test_a_streams_store_stays_with_the_trainer() -> None:
    store = torch.distributed.HashStore()
    data = Numbers(0, 4)
    loader = lk.Loader(data, 2, num_workers=1, store=store, multiprocessing_context="forkserver")
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


class Seeded:
    """Its samples tell what `worker_init_fn` found."""

    found: tuple[int, ...] = ()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.found)


class SeededStream(Seeded, torch_data.IterableDataset[Any]):
    __len__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(8))


def note_seeds(worker_id: int) -> None:
    info: Any = torch_data.get_worker_info()
    drawn = int(torch.randint(2**60, ())), int(np.random.randint(2**60)), random.getrandbits(60)
    info.dataset.found = (worker_id, info.seed, torch.initial_seed(), *drawn)


def read_seeds(name: str) -> Iterator[Any]:
    for _ in range(8):
        info: Any = torch_data.get_worker_info()
        yield torch.tensor(info.dataset.found)


ENGINES: dict[str, Any] = {
    "ring": lambda: (Seeded(), {"engine": "ring"}),
    "ring, in turn": lambda: (Seeded(), {"engine": "ring", "order": lk.ShardOrder([4] * 4, lanes=2)}),
    "torch": lambda: (Seeded(), {"engine": "torch"}),
    "iterable": lambda: (SeededStream(), {"stop": "each"}),
    "stream": lambda: (lk.StreamDataset(list("abcd"), lk.from_start(read_seeds), lanes=4), {"stop": "each"}),
}


def seeded_loader(kind: str, rank: int, **more: Any) -> lk.Loader:
    data, settings = ENGINES[kind]()
    world = lk.World(rank, 2)
    return lk.Loader(data, 1, num_workers=2, worker_init_fn=note_seeds, world=world, **settings, **more)


def seeds_of(batches: Any) -> dict[int, tuple[int, ...]]:
    """Return what each worker found; it must tell the same in each sample."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for batch in batches:
        worker, *seeds = batch[0].tolist()
        found.setdefault(worker, set()).add(tuple(seeds))
    assert all(len(seeds) == 1 for seeds in found.values())
    return {worker: seeds.pop() for worker, seeds in found.items()}


@pytest.mark.parametrize("kind", ENGINES)
def test_no_rank_epoch_or_worker_has_the_seeds_of_another(kind: str) -> None:
    """Else a `worker_init_fn` that seeds by them, as MONAI's, repeats its augmentations."""
    found: dict[tuple[int, int, int], tuple[int, ...]] = {}
    for rank in range(2):
        loader = seeded_loader(kind, rank)
        for epoch in range(3):
            found |= {(rank, epoch, worker): seeds for worker, seeds in seeds_of(loader).items()}
    assert len(found) >= (6 if kind == "ring" else 12)  # a free worker of the ring may take all batches
    for column in zip(*found.values(), strict=True):
        assert len(set(column)) == len(found)
    assert all(seeds[0] == seeds[1] for seeds in found.values())
    other = seeds_of(seeded_loader(kind, 0, seed=7)) if kind != "stream" else {}  # it has a seed itself
    assert not set(other.values()) & set(found.values())


@pytest.mark.parametrize("kind", ENGINES)
def test_a_resumed_epoch_has_the_seeds_of_that_epoch(kind: str) -> None:
    loader = seeded_loader(kind, 1)
    list(loader)
    batches = iter(loader)
    first = [next(batches) for _ in range(2)]
    state, epoch = loader.state_dict(), {**seeds_of(first)}
    epoch |= seeds_of(batches)
    state = state if kind.startswith(("ring", "torch")) else lk.merge_states(other_ranks(kind, state))
    again = seeded_loader(kind, 1)
    again.load_state_dict(state)
    resumed = seeds_of(again)
    assert resumed
    assert all(epoch.get(worker, seeds) == seeds for worker, seeds in resumed.items())
    assert kind == "ring" or set(epoch) & set(resumed)  # a free worker of the ring may take all batches


def other_ranks(kind: str, state: Any) -> list[Any]:
    loader = seeded_loader(kind, 0)
    list(loader)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    found = loader.state_dict()
    loader.close()
    return [found, state]


@pytest.mark.parametrize("kind", ["ring, in turn", "torch"])
def test_persistent_workers_are_seeded_once_as_those_of_a_dataloader(kind: str) -> None:
    loader = seeded_loader(kind, 0, persistent_workers=True)
    epochs = [seeds_of(loader) for _ in range(2)]
    loader.close()
    assert epochs[0] == epochs[1] == seeds_of(seeded_loader(kind, 0))
    later = seeded_loader(kind, 0, persistent_workers=True)
    later.seek(epoch=1)
    assert seeds_of(later) != epochs[0]
    later.close()


class Told(Seeded):
    draws_nothing = True

    def __getitem__(self, index: int) -> bool:
        return torch_data.get_worker_info() is None


def test_threads_are_no_workers_to_torch() -> None:
    assert all(torch.cat(list(lk.Loader(Told(), 4, num_workers=2, engine="threads"))).tolist())


class ToldWho(Squares):
    """Its samples say what the worker is told."""

    draws_nothing = True

    def __getitem__(self, index: int) -> Any:
        info: Any = torch_data.get_worker_info()
        if info is None:
            return torch.zeros(5, dtype=torch.int64)
        return torch.tensor([1, info.id, info.num_workers, int(info.dataset is self), info.seed % 2**31])


class Drawing(Squares):
    draws_only_sample_rng = True

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([lk.sample_rng().random(), float(torch.initial_seed() % 2**31)])


@pytest.fixture
def next_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch keep `get_worker_info()` for each thread, as its next version does."""
    from torch.utils.data._utils import worker

    of_thread = threading.local()

    def get_worker_info() -> Any:
        return getattr(of_thread, "worker_info", None) or worker._worker_info

    @dataclasses.dataclass(frozen=True)
    class WorkerInfo:
        id: int
        num_workers: int
        seed: int
        dataset: Any
        rng: Any = None
        worker_method: str = "multiprocessing"

    monkeypatch.setattr(worker, "_thread_local_worker_info", of_thread, raising=False)
    monkeypatch.setattr(worker, "WorkerInfo", WorkerInfo)
    for module in (worker, torch_data):
        monkeypatch.setattr(module, "get_worker_info", get_worker_info)


@pytest.mark.usefixtures("next_torch")
def test_threads_are_told_if_torch_keeps_that_for_each_thread() -> None:
    data = ToldWho()
    found = torch.cat(list(lk.Loader(data, 1, num_workers=3, engine="threads")))
    assert found[:, 0].tolist() == [1] * 10
    assert set(found[:, 1].tolist()) <= {0, 1, 2}
    assert found[:, 2:4].tolist() == [[3, 1]] * 10
    assert len({tuple(row) for row in found[:, [1, 4]].tolist()}) == len(set(found[:, 1].tolist()))
    assert torch_data.get_worker_info() is None  # the trainer's thread is no worker
    # A worker process is told as before.
    told = torch.cat(list(lk.Loader(data, 2, num_workers=1, engine="torch", multiprocessing_context="fork")))
    assert told[:, :4].tolist() == [[1, 0, 1, 1]] * 10


@pytest.mark.usefixtures("next_torch")
def test_a_thread_that_is_told_is_no_worker_process() -> None:
    """It neither makes batches in shared memory nor keeps the trainer's generators seeded."""
    alone, threads = (
        list(lk.Loader(Drawing(), 4, shuffle=True, **more)) for more in ({}, {"num_workers": 2, "engine": "threads"})
    )
    assert torch.equal(torch.cat(alone), torch.cat(threads))
    large = next(iter(lk.Loader([torch.ones(1 << 18)] * 4, 4, num_workers=1, engine="threads", collate_fn=stacked)))
    assert not large.is_shared()


def stacked(samples: list[torch.Tensor]) -> Any:
    return torch_data.default_convert(torch.stack(samples))


stacked.draws_nothing = True  # type: ignore[attr-defined]


class Collects:
    """Looks how much a garbage collection adds to the memory that this process shares with no other, in kilobytes."""

    draws_nothing = True

    def __init__(self, objects: int) -> None:
        self.objects = [[number] for number in range(objects)]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        before = self._own_kb()
        gc.collect()
        return self._own_kb() - before

    def _own_kb(self) -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell a process's own memory"
)
@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_a_collection_in_a_forked_worker_copies_nothing_of_its_parent(engine: Any) -> None:
    data = Collects(300_000)  # 20 MB of lists
    loader = lk.Loader(data, 1, num_workers=1, engine=engine, multiprocessing_context="fork")
    assert max(int(grown) for grown in loader) < 5_000
