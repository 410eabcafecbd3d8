"""`get_worker_info().dataset` is the user's dataset, which `worker_init_fn` may change."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

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
