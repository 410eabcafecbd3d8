"""A dataset that gives the next sample of an iterator, whatever its index, is refused by name with the way out."""

import itertools
import random
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data

import loaderkit as lk


class Pulled:
    """Holds an iterator."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return 4


class Next(Pulled):
    def __getitem__(self, index: int) -> Any:
        return next(self.source)


class Unnamed(Pulled):
    def __getitem__(self, _: int) -> Any:
        return next(iter(self.source))


class Indexed(Pulled):
    """Holds an iterator, and reads by index."""

    def __getitem__(self, index: int) -> Any:
        return [index for _ in range(2)]


class Closed(Pulled):
    def __getitem__(self, index: int) -> Any:
        return sorted([1, 2], key=lambda number: number * index)


class Synthetic:
    """Ignores its index, and draws."""

    def __init__(self) -> None:
        self.sizes = [2, 3]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2), random.random()


class Queue(Synthetic):
    """Stands for torchio's, whose iterator is made at the first sample."""


Queue.__module__ = "torchio.data.queue"


SOURCES = {
    "iterator": lambda: itertools.count(),
    "generator": lambda: (number for number in range(9)),
    "loader": lambda: torch_data.DataLoader(range(9)),  # type: ignore[arg-type]
}
WRAPPERS = {
    "alone": lambda data: data,
    "subset": lambda data: torch_data.Subset(data, [0, 1]),
    "concat": lambda data: torch_data.ConcatDataset([data, data]),
    "map": lambda data: lk.MapDataset(data, str),
    "zip": lambda data: lk.ZipDataset({"a": data, "b": lk.RecordDataset("abcd")}),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("kind", [Next, Unnamed])
def test_what_ignores_the_index_and_holds_an_iterator_is_refused(kind: Any, source: Any, wrap: Any) -> None:
    with pytest.raises(
        TypeError,
        match=rf"loader: {kind.__name__} ignores the index .* from 'source', a \w+\..*loaderkit.StreamDataset",
    ):
        lk.Loader(wrap(kind(source())), 2)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_queue_of_torchio_is_refused_before_it_has_an_iterator(wrap: Any) -> None:
    with pytest.raises(
        TypeError, match=r"loader: Queue ignores the index .*give loaderkit.PatchDataset\(subjects, sampler"
    ):
        lk.Loader(wrap(Queue()), 2)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_what_reads_by_index_or_draws_is_no_queue(wrap: Any) -> None:
    for data in (Indexed(itertools.count()), Closed(itertools.count()), Synthetic()):
        assert len(lk.Loader(wrap(data), 2)) > 0
