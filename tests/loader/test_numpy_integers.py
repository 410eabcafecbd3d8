"""An integer of numpy is an integer wherever a setting is one, and leaves no trace in a state."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import loaderkit as lk

DATA = list(range(24))
Integer = Callable[[int], Any]


def numbers(shard: str, start: int) -> Iterator[int]:
    yield from range(int(shard) + start, int(shard) + 8)


def moved(loader: lk.Loader, move: Callable[[lk.Loader], Any]) -> lk.Loader:
    move(loader)
    return loader


# Each setting that is an integer, in a loader that is made with it.
MADE: dict[str, Callable[[Integer], lk.Loader]] = {
    "batch_size": lambda n: lk.Loader(DATA, n(3)),
    "seed": lambda n: lk.Loader(DATA, 3, shuffle=True, seed=n(2)),
    "num_workers": lambda n: lk.Loader(DATA, 3, num_workers=n(1), prefetch_factor=n(2)),
    "Shuffled": lambda n: lk.Loader(DATA, 3, order=lk.Shuffled(n(24), seed=n(5))),
    "Sequential": lambda n: lk.Loader(DATA, 3, order=lk.Sequential(n(24))),
    "Subset": lambda n: lk.Loader(DATA, 3, order=lk.Subset(range(12), shuffle=True, seed=n(5))),
    "Weighted": lambda n: lk.Loader(DATA, 3, order=lk.Weighted([1.0] * 24, seed=n(5), size=n(9))),
    "ShardOrder": lambda n: lk.Loader(
        DATA, 3, order=lk.ShardOrder([8] * 3, seed=n(5), lanes=n(2), window=n(4), block=n(3))
    ),
    "Mixture": lambda n: lk.Loader(
        DATA, 3, order=lk.Mixture([n(12), n(12)], [1, 2], seed=n(5), size=n(9), window=n(6))
    ),
    "LengthBuckets": lambda n: lk.Loader(DATA, plan=lk.LengthBuckets([1, 2] * 12, n(3), seed=n(5), window=n(6))),
    "World": lambda n: lk.Loader(DATA, 3, world=lk.World(n(1), n(2))),
    "take, skip, shuffle and batch": lambda n: lk.Loader(
        lk.Pipeline(DATA).shuffle(n(3)).skip(n(2)).take(n(20)).batch(n(2)), batch_size=None
    ),
    "stream": lambda n: lk.Loader(
        lk.StreamDataset(["0", "8", "16"], numbers, lanes=n(2), window=n(4), shuffle=True, seed=n(5)), 3, steps=n(4)
    ),
    "verbs of a stream": lambda n: lk.Loader(
        lk.StreamDataset(["0", "8", "16"], numbers, lanes=1).skip(n(1)).take(n(20)).shuffle(n(4)).batch(n(2)),
        batch_size=None,
    ),
    "CachedDataset": lambda n: lk.Loader(lk.CachedDataset(DATA, max_bytes=n(1 << 20)), 3),
    "seek": lambda n: moved(lk.Loader(DATA, 3, shuffle=True), lambda loader: loader.seek(epoch=n(2), samples=n(6))),
    "set_epoch": lambda n: moved(lk.Loader(DATA, 3, shuffle=True), lambda loader: loader.set_epoch(n(2))),
    "seek in a stream": lambda n: moved(
        lk.Loader(lk.StreamDataset(["0", "8", "16"], numbers, shuffle=True), 3), lambda loader: loader.seek(epoch=n(2))
    ),
    "skip": lambda n: moved(lk.Loader(DATA, 3), lambda loader: loader.skip(epoch=n(0), steps=range(2, 4))),
    "split": lambda n: lk.Loader(lk.split(lk.RecordDataset(DATA), fold=n(1), folds=n(3), seed=n(4))["train"], 3),
}


def batches(loader: lk.Loader) -> list[Any]:
    return [np.asarray(batch).tolist() for batch in loader]


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint16])
@pytest.mark.parametrize("setting", MADE)
def test_a_numpy_integer_does_what_the_integer_does(setting: str, kind: Any) -> None:
    make = MADE[setting]
    integer = kind if setting != "CachedDataset" else np.int64
    loader, wanted = make(integer), make(int)
    assert batches(loader) == batches(wanted) != []
    state = loader.state_dict()
    assert state == wanted.state_dict()
    assert json.loads(json.dumps(state)) == state
    make(int).load_state_dict(state)


def test_what_is_asked_by_a_numpy_integer_is_answered() -> None:
    loader = lk.Loader(DATA, 3, shuffle=True)
    one = np.int64(1)
    assert loader.indices(one, one).tolist() == loader.indices(1, 1).tolist()
    cursor = lk.Cursor(epoch=one, samples=np.int64(6), batches=np.int64(2))
    assert cursor == lk.Cursor(epoch=1, samples=6, batches=2)
    assert all(type(value) is int for value in (cursor.epoch, cursor.samples, cursor.batches))
    assert loader.replay(cursor, ahead=one).tolist() == loader.replay(lk.Cursor(epoch=1), ahead=3).tolist()


@pytest.mark.parametrize("value", [True, np.bool_(True), 2.0, np.float64(2), "2"])
@pytest.mark.parametrize("setting", ["batch_size", "num_workers", "seed"])
def test_what_is_no_integer_is_still_refused(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"loader: {setting} is .*, wanted an integer"):
        lk.Loader(DATA, **{setting: value})


@pytest.mark.parametrize("given", [3, None, (0, 3)])
def test_a_replay_of_what_is_no_cursor_says_what_to_write(given: Any) -> None:
    with pytest.raises(
        TypeError, match=r"replay of .*, wanted the position before the batch: Cursor\(epoch=0\), ahead=3"
    ):
        lk.Loader(DATA, 3).replay(given)
