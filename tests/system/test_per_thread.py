"""Objects that each thread opens for itself: a copy starts empty, and a cycle closes its files."""

import copy
import gc
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

from loaderkit.system.per_thread import Opened, PerThread


class Kept:
    """An owner of handles, in a cycle."""

    def __init__(self, number: int) -> None:
        self.opened = PerThread(Opened)
        self.more = [Kept(number - 1)] if number else []
        self.cycle = self


@pytest.mark.parametrize("collections", range(3))
def test_handles_in_a_cycle_close_before_they_are_collected(collections: int, tmp_path: Path) -> None:
    """Otherwise a file may warn that it was not closed: Python frees the parts of a cycle in any order."""
    (tmp_path / "a").write_bytes(b"a")
    kept = Kept(20)
    one: Any = kept
    while one.more:
        one.opened.own.handles[0] = (tmp_path / "a").open("rb")
        one = one.more[0]
        for _ in range(collections):
            gc.collect()
    del kept, one
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert not caught


def test_a_copy_starts_empty() -> None:
    kept = PerThread(list, (1, 2))
    kept.own.append(3)
    for made in (copy.copy(kept), copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert made.own == [1, 2]
    assert kept.own == [1, 2, 3]
