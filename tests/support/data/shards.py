"""The laws that every dataset over shards keeps."""

import pickle
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
from drawing import draws, equal

import loaderkit as lk
from loaderkit import testing

SIZES = [[7], [3, 0, 5], [0, 0, 4, 1], [1] * 9, [40, 1, 1, 0, 2]]  # one, empty ones, many tiny, one huge


def with_draws(sample: Any) -> dict[str, Any]:
    """A random transform."""
    return {"sample": sample, "draws": draws()}


def as_list(samples: list[Any]) -> list[Any]:
    """A collate that keeps samples of any shape."""
    return samples


def check_reads(dataset: Any, wanted: Sequence[Any]) -> None:
    """Check that the dataset equals a list: by one index, by many, in any order, repeated."""
    assert len(dataset) == len(wanted) > 0
    assert equal([dataset[index] for index in range(len(wanted))], list(wanted))
    assert equal(dataset[-1], wanted[-1])
    many = [*reversed(range(len(wanted))), 0, len(wanted) - 1, 0]
    assert equal(dataset.__getitems__(many), [wanted[index] for index in many])
    assert dataset.__getitems__([]) == []
    for index in (len(wanted), -len(wanted) - 1):
        with pytest.raises(IndexError, match=f"index {index} in a dataset of {len(wanted)} samples"):
            dataset[index]
    with pytest.raises(IndexError, match="in a dataset of"):
        dataset.__getitems__([0, len(wanted)])


def check_laws(make: Callable[[], Any], number: Callable[[Any], int], start_method: str | None = "fork") -> None:
    """Exactly once, resumable, the same with workers and after pickling; for a dataset with `transform=with_draws`.

    `number` gives a raw sample's place among all. With a start method of None the Loader chooses.
    """
    size = len(make())
    assert size > 0

    def loader(**changes: Any) -> lk.Loader:
        settings = {"batch_size": 3, "shuffle": True, "seed": 5, "collate_fn": as_list, **changes}
        return lk.Loader(make(), **settings)

    def ids(batch: list[Any]) -> list[int]:
        return [number(entry["sample"]) for entry in batch]

    testing.assert_exactly_once(loader, samples=size, worlds=[1, 2] if size > 1 else [1], ids=ids)
    testing.assert_resumable(loader, epochs=1, stops=[1, len(loader())], consumers=["trainer"], ids=ids)
    workers = [0, min(2 if start_method == "fork" else 1, len(loader()))]  # others take long to start
    testing.assert_workers_dont_matter(
        loader, workers=workers, start_methods=[start_method], persistent=[False], ids=ids
    )
    # As a worker that is not forked gets it.
    copy = lk.Loader(pickle.loads(ForkingPickler.dumps(make())), 3, shuffle=True, seed=5, collate_fn=as_list)
    assert equal(list(copy), list(loader()))
