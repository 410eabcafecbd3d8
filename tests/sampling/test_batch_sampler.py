"""Batches of a user's own batch sampler: each comes once, on any ranks, and resumes anywhere."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

import loaderkit as lk

DATA = list(range(60))


class PairsOfClasses:
    """Batches that hold two samples of each of 2 to 4 classes, drawn from the global generators."""

    def __iter__(self) -> Iterator[list[int]]:
        classes = np.random.permutation(24)
        for first in range(0, 24, 2):
            extra = random.sample(range(48, 60), first % 3)
            yield [*(2 * classes[first : first + 2]).tolist(), *(2 * classes[first : first + 2] + 1).tolist(), *extra]


def make_sampler(kind: str) -> Any:
    return PairsOfClasses() if kind == "pairs" else BatchSampler(RandomSampler(DATA), 5, drop_last=False)


def batches_of(loader: lk.Loader[Any], count: int | None = None) -> list[list[int]]:
    found = []
    for batch in loader:
        found.append(batch.tolist())
        if len(found) == count:
            break
    return found


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["pairs", "torch"])
@pytest.mark.parametrize("engine", [{}, {"num_workers": 2}, {"num_workers": 2, "engine": "torch"}])
def test_ranks_take_turns_and_every_epoch_is_drawn_again(kind: str, engine: dict[str, Any]) -> None:
    whole = lk.Loader(DATA, batch_sampler=make_sampler(kind))
    epochs = [batches_of(whole) for _ in range(2)]
    assert len(epochs[0]) == 12
    assert epochs[0] != epochs[1]
    ranks = [lk.Loader(DATA, batch_sampler=make_sampler(kind), world=lk.World(r, 3), **engine) for r in range(3)]
    for epoch in epochs:
        parts = [batches_of(loader) for loader in ranks]
        assert [part[step] for step in range(4) for part in parts] == epoch


@pytest.mark.parametrize("kind", ["pairs", "torch"])
@pytest.mark.parametrize("steps", range(7))
@pytest.mark.parametrize("resumed", [1, 2, 3])
def test_a_resume_continues_on_other_ranks(kind: str, steps: int, resumed: int) -> None:
    """After any step of 2 ranks, 1 to 3 ranks read exactly the batches that are left."""
    whole = batches_of(lk.Loader(DATA, batch_sampler=make_sampler(kind)))
    loader = lk.Loader(DATA, batch_sampler=make_sampler(kind), world=lk.World(0, 2))
    if steps:
        batches_of(loader, steps)
    state = loader.state_dict()
    left = whole[2 * steps :] or batches_of_epoch(kind, 1)
    if len(left) % resumed:
        again = lk.Loader(DATA, batch_sampler=make_sampler(kind), world=lk.World(0, resumed))
        again.load_state_dict(state)
        with pytest.raises(ValueError, match="come out uneven"):
            len(again)
        return
    parts = []
    for rank in range(resumed):
        again = lk.Loader(DATA, batch_sampler=make_sampler(kind), world=lk.World(rank, resumed))
        again.load_state_dict(state)
        parts.append(batches_of(again))
    assert [part[step] for step in range(len(parts[0])) for part in parts] == left


def batches_of_epoch(kind: str, epoch: int) -> list[list[int]]:
    loader = lk.Loader(DATA, batch_sampler=make_sampler(kind))
    loader.seek(epoch=epoch)
    return batches_of(loader)


def test_uneven_batches_are_an_error_dropped_or_padded() -> None:
    """Ranks never get different numbers of batches."""
    sampler = [[0, 1], [2], [3, 4, 5], [6], [7, 8]]
    with pytest.raises(ValueError, match="5 batches of list for 2 ranks come out uneven"):
        len(lk.Loader(DATA, batch_sampler=sampler, world=lk.World(0, 2)))
    for tail, last in (("drop", [6]), ("pad", [0, 1])):
        parts = [batches_of(lk.Loader(DATA, batch_sampler=sampler, tail=tail, world=lk.World(r, 2))) for r in range(2)]
        assert len(parts[0]) == len(parts[1])
        assert parts[1][-1] == last


def test_seeking_inside_a_batch_is_an_error() -> None:
    loader = lk.Loader(DATA, batch_sampler=[[0, 1], [2, 3]])
    loader.seek(epoch=0, samples=3)
    with pytest.raises(ValueError, match="sample 3 is inside a batch of list"):
        batches_of(loader)


@pytest.mark.parametrize("batch", [[], 3, [[1]], [1.5], ["a"], [[1], 2]])
def test_a_batch_that_is_no_list_of_indices_is_an_error(batch: Any) -> None:
    with pytest.raises(TypeError, match=r"the batch sampler gives .*, wanted a list of one or more integers"):
        len(lk.Loader(DATA, batch_sampler=[[1], batch]))


def test_an_index_beyond_the_data_is_an_error() -> None:
    with pytest.raises(ValueError, match="indices up to 60, the dataset 60"):
        lk.Loader(DATA, batch_sampler=[[1], [60]])


@pytest.mark.parametrize("setting", [{"batch_size": 2}, {"shuffle": True}, {"order": [1]}])
def test_settings_that_contradict_are_an_error(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"batch_sampler= makes the batches alone\. Leave out"):
        lk.Loader(DATA, batch_sampler=[[1]], **setting)


def test_a_sampler_of_one_ranks_part_is_an_error() -> None:
    part = DistributedSampler(DATA, num_replicas=2, rank=0)
    with pytest.raises(ValueError, match="divides the samples over 2 ranks"):
        lk.Loader(DATA, batch_sampler=BatchSampler(part, 2, drop_last=False))


def test_another_batch_sampler_refuses_the_state() -> None:
    loader = lk.Loader(DATA, batch_sampler=[[0, 1], [2, 3]])
    state = loader.state_dict()
    with pytest.raises(ValueError, match="cannot resume"):
        lk.Loader(DATA, batch_sampler=[[0], [1, 2, 3]]).load_state_dict(state)
