"""The laws of the Loader: exactly once, resumed anywhere, nothing silent."""

import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from drawing import Drawing, drawing_collate, equal
from sealed import reseal

import loaderkit as lk


def make_loader(size: int = 13, batch_size: int | None = 3, **settings: Any) -> lk.Loader:
    return lk.Loader(list(range(size)), batch_size, **{"shuffle": True, "seed": 4, **settings})


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def lists(batches: Iterator[Any] | lk.Loader) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def after(loader: lk.Loader, stop: int) -> dict[str, Any]:
    """The state after some batches, as a checkpoint file holds it."""
    while stop > 0:
        stop -= len(list(itertools.islice(loader, stop)))
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert len(json.dumps(state)) < 1024
    assert json.loads(json.dumps(state)) == state
    return state


@pytest.mark.filterwarnings("ignore:Loader. no batches")
@pytest.mark.parametrize("tail", ["keep", "drop", "pad"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_epoch_over_all_ranks_has_each_sample_once(world: int, tail: str) -> None:
    for size in (*range(world, 14), 31):
        for batch_size in (1, 2, 5):
            ranks = [make_loader(size, batch_size, tail=tail, world=lk.World(r, world)) for r in range(world)]
            batches = [lists(loader) for loader in ranks]
            assert len({len(part) for part in batches}) == 1
            found = sorted(index for part in batches for batch in part for index in batch)
            full = world * batch_size
            if tail == "keep":
                assert found == list(range(size))
            elif tail == "drop":
                assert len(set(found)) == len(found) == size // full * full
            else:
                assert set(found) == set(range(size))
                assert len(found) == -(-size // full) * full
            states = [loader.state_dict() for loader in ranks]
            assert all(state == states[0] for state in states)


@pytest.mark.parametrize("stop", range(11))
@pytest.mark.parametrize("tail", ["keep", "drop", "pad"])
def test_a_resume_continues_the_uninterrupted_run(tail: Any, stop: int) -> None:
    """At every stop point of two epochs, draws included, and again after the resume."""

    def make() -> lk.Loader:
        return lk.Loader(Drawing(13), 3, shuffle=True, tail=tail, collate_fn=drawing_collate)

    whole_loader = make()
    per_epoch = len(whole_loader)
    whole = [batch for _ in range(4) for batch in whole_loader]
    assert len(whole) == 4 * per_epoch >= 16
    state = after(make(), stop)
    again = make()
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert len(again) == per_epoch
    rest = list(again)
    assert equal(rest, whole[stop : stop + len(rest)])
    assert len(rest) == per_epoch - stop % per_epoch
    assert equal(list(again), whole[stop + len(rest) : stop + len(rest) + per_epoch])


def test_the_cursor_rolls_over_with_the_last_batch() -> None:
    """Lightning stops at len() and never asks for more."""
    loader = make_loader()
    taken = list(itertools.islice(loader, len(loader)))
    assert len(taken) == 5
    assert loader.cursor == lk.Cursor(epoch=1)


def test_each_iteration_is_the_next_epoch_also_after_a_break() -> None:
    loader, other = make_loader(), make_loader()
    epochs = [lists(other) for _ in range(4)]
    assert sorted(flat(epochs[0])) == list(range(13))
    assert len({str(epoch) for epoch in epochs}) == 4
    assert lists(loader) == epochs[0]
    assert lists(itertools.islice(loader, 2)) == epochs[1][:2]
    assert loader.cursor == lk.Cursor(epoch=1, samples=6, batches=2)
    assert lists(loader) == epochs[2]
    state = after(loader, 1)
    loader.load_state_dict(state)  # but a state that was loaded is gone on from
    assert lists(loader) == epochs[3][1:]


def test_calling_iter_starts_nothing() -> None:
    loader = make_loader()
    unused = [iter(loader) for _ in range(3)]
    assert lists(loader) == lists(make_loader())
    assert lists(unused[0])[0] == loader.indices(1, 0).tolist()


def test_a_superseded_iterator_says_so() -> None:
    loader = make_loader()
    for supersede in (
        lambda: next(iter(loader)),
        lambda: loader.seek(epoch=3),
        lambda: loader.load_state_dict(make_loader().state_dict()),
    ):
        old = iter(loader)
        next(old)
        supersede()
        with pytest.raises(RuntimeError, match=r"this iterator is over.*Call iter\(loader\)"):
            next(old)


def test_a_used_up_iterator_stays_so() -> None:
    loader = make_loader()
    iterator = iter(loader)
    assert len(list(iterator)) == 5
    assert list(iterator) == []
    assert len(list(loader)) == 5
    assert list(iterator) == []


def test_seek_jumps_to_any_sample_of_any_epoch() -> None:
    loader = make_loader()
    whole = [lists(loader) for _ in range(3)]
    loader.seek(epoch=2, samples=6)
    assert loader.cursor == lk.Cursor(epoch=2, samples=6, batches=2)
    assert lists(loader) == whole[2][2:]
    loader.seek(epoch=0, samples=4)  # also between batches
    assert flat(lists(loader)) == flat(whole[0])[4:]
    loader.seek(epoch=0, samples=13)
    assert loader.cursor == lk.Cursor(epoch=1)
    assert lists(loader) == whole[1]


@pytest.mark.parametrize("order", [None, lk.Subset(range(13))])
def test_seek_beyond_the_epoch_is_refused(order: lk.Order | None) -> None:
    loader = lk.Loader(list(range(13 if order is None else 40)), order=order)
    with pytest.raises(ValueError, match="seek to sample 14, wanted at most the epoch's 13"):
        loader.seek(epoch=0, samples=14)
    with pytest.raises(ValueError, match="epoch is -1"):
        loader.seek(epoch=-1)


class Counted:
    """Counts what is read."""

    def __init__(self, size: int) -> None:
        self.size, self.read = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return index


def test_indices_tell_a_batch_without_reading_it() -> None:
    data = Counted(13)
    for rank in range(2):
        loader = lk.Loader(data, 2, shuffle=True, world=lk.World(rank, 2))
        told = [[loader.indices(epoch, batch).tolist() for batch in range(len(loader))] for epoch in range(2)]
        assert data.read == 0
        assert told == [lists(loader), lists(loader)]
        data.read = 0
    with pytest.raises(IndexError, match="batch 4 asked for"):
        loader.indices(0, 4)


def test_a_resume_replays_nothing_whatever_the_size() -> None:
    for size in (10**3, 10**7, 10**12):
        data = Counted(size)
        loader = lk.Loader(data, 4, shuffle=True)
        loader.seek(epoch=3, samples=size * 9 // 10)
        state = loader.state_dict()
        resumed = lk.Loader(data, 4, shuffle=True)
        resumed.load_state_dict(state)
        assert next(iter(resumed)).tolist() == next(iter(loader)).tolist()
        assert data.read == 8
        assert len(json.dumps(state)) < 1024


def test_without_batching_samples_come_as_they_are() -> None:
    data = [{"a": np.float32(number)} for number in range(5)]
    loader = lk.Loader(data, None, shuffle=True, seed=1, pin_memory=False)  # pinning makes new dicts
    found = list(loader)
    assert len(found) == len(loader) == 5
    assert found == [data[int(loader.indices(0, b)[0])] for b in range(5)]
    assert all(sample is data[int(sample["a"])] for sample in found)
    changed = lk.Loader(data, None, collate_fn=lambda sample: sample["a"] + 1)
    assert list(changed) == [1, 2, 3, 4, 5]
    first = after(lk.Loader(data, None, shuffle=True, seed=1), 2)
    loader.load_state_dict(first)
    assert list(loader) == found[2:]


REFUSALS = [
    ({"size": 14}, "for dataset '13 samples .*', this loader has '14 samples .*'"),
    ({"seed": 5}, "for seed 4, this loader has 5"),
    ({"shuffle": False}, r"for order 'shuffled-3\(seed=4\)', this loader has 'sequential-1'"),
    ({"shuffle": False, "order": lk.Shuffled(13, seed=9)}, r"this loader has 'shuffled-3\(seed=9\)'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS)
def test_a_state_of_another_run_is_refused(changes: dict[str, Any], message: str) -> None:
    state = after(make_loader(), 2)
    loader = make_loader(**changes)
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(state)
    assert loader.cursor == lk.Cursor()


def test_a_state_of_other_data_of_that_size_is_refused() -> None:
    state = lk.Loader(lk.ArrayDataset(torch.arange(9))).state_dict()
    with pytest.raises(ValueError, match=r"for dataset '9 samples \(\w+\)', this loader has '9 samples \(\w+\)'"):
        lk.Loader(lk.ArrayDataset(torch.arange(9) + 1)).load_state_dict(state)


def test_a_resume_on_more_ranks_than_samples_left_says_so() -> None:
    loader = make_loader(world=lk.World(0, 3))
    loader.seek(epoch=0, samples=11)
    with pytest.raises(ValueError, match=r"2 samples left in epoch 0 for 3 ranks.*loader.seek\(epoch=1\)"):
        next(iter(loader))
    with pytest.raises(ValueError, match="2 samples in the dataset for 3 ranks"):
        len(make_loader(2, world=lk.World(0, 3)))


def test_nothing_to_read_and_idle_workers_are_said_once() -> None:
    empty = make_loader(2, 4, tail="drop")
    with pytest.warns(UserWarning, match="no batches in epoch 0: 2 samples, batch size 4, 1 ranks, tail='drop'"):
        assert list(empty) == []
    assert list(empty) == []  # a second warning would be an error here
    assert empty.cursor == lk.Cursor()
    idle = make_loader(2, 2, num_workers=2)
    with pytest.warns(UserWarning, match="2 workers for 1 batches an epoch: 1 workers are idle"):
        assert len(list(idle)) == 1
    assert len(list(idle)) == 1


def test_a_trainer_moves_a_loader_ahead_but_never_back() -> None:
    """set_epoch through `batch_sampler.sampler`, as Lightning calls it."""
    loader = make_loader()
    loader.batch_sampler.sampler.set_epoch(2)
    assert loader.cursor == lk.Cursor(epoch=2)
    state = after(make_loader(), 12)
    loader.load_state_dict(state)
    loader.batch_sampler.sampler.set_epoch(2)
    assert loader.cursor == lk.Cursor(epoch=2, samples=6, batches=2)
    with pytest.warns(UserWarning, match=r"Use loaderkit.DataModule"):
        loader.state_dict()


def test_an_epoch_that_a_trainer_ends_twice_is_not_skipped() -> None:
    """Lightning does so after it loads a state that was saved at an epoch's end under max_steps."""
    whole = make_loader()
    epochs = [list(whole) for _ in range(4)]
    loader = make_loader()
    loader.load_state_dict(after(make_loader(), len(epochs[0])))
    set_epoch = loader.batch_sampler.sampler.set_epoch
    set_epoch(1)
    for number in (2, 3):
        set_epoch(number)
        assert equal(list(loader), epochs[number - 1])
    set_epoch(4)  # the user skips epoch 3
    set_epoch(5)
    assert loader.cursor.epoch == 4


def test_its_repr_says_what_it_holds_in_a_line() -> None:
    batches = repr(lk.Loader(list(range(2500)), 8, num_workers=2, world=lk.World(1, 4)))
    assert batches == "Loader(list of 2,500 samples, batch_size=8, num_workers=2, engine='auto', rank 1 of 4)"
    budget = repr(lk.Loader([[1]], plan=lk.TokenBudget([1], max_tokens=4), world=lk.World()))
    assert budget == "Loader(list of 1 sample, plan=TokenBudget, num_workers=0, engine='auto', rank 0 of 1)"
    stream = repr(lk.Loader(lk.StreamDataset(["a"], lambda shard, start: iter([1])), world=lk.World()))
    assert stream == "Loader(StreamDataset, a stream, batch_size=1, num_workers=0, engine='auto', rank 0 of 1)"


@pytest.mark.parametrize("order", [None, lk.Shuffled(13), lk.Subset(range(7))])
def test_a_state_after_the_epochs_end_is_refused(order: lk.Order | None) -> None:
    """Edited by hand, say: it would end the epoch without a word."""
    data = list(range(13))
    state = lk.Loader(data, 2, order=order).state_dict()
    size = 13 if order is None else order.size(0)
    loader = lk.Loader(data, 2, order=order)
    loader.load_state_dict(reseal(state, cursor=state["cursor"] | {"samples": size}))
    with pytest.raises(
        ValueError, match=f"is at sample {size + 1}, wanted at most {size}, all of epoch 0. The state is damaged"
    ):
        loader.load_state_dict(reseal(state, cursor=state["cursor"] | {"samples": size + 1}))
    assert loader.cursor == lk.Cursor(epoch=1)
