"""Each thread has its own handles: they close with the thread or with their owner, and never in a fork."""

import copy
import gc
import multiprocessing
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loaderkit.system import Opened, PerThread


class Closed:
    """A handle that knows whether it is closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@contextmanager
def other_thread(kept: PerThread[Opened]) -> Iterator[Closed]:
    """Keep a handle open in another thread."""
    found, ready, end = Closed(), threading.Event(), threading.Event()

    def stay() -> None:
        kept.own.handles[0] = found
        ready.set()
        end.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    assert ready.wait(60)
    try:
        yield found
    finally:
        end.set()
        thread.join(60)


def test_a_threads_handles_close_when_it_ends() -> None:
    kept = PerThread(Opened)
    mine = kept.own.handles[0] = Closed()
    with other_thread(kept) as theirs:
        assert not theirs.closed
    assert theirs.closed
    assert not mine.closed
    assert kept.own.handles[0] is mine


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


def test_a_fork_closes_no_handles_of_its_parents_threads() -> None:
    """Such a thread may be reading, with a lock that closing would wait for."""
    kept = PerThread(Opened)
    mine = kept.own.handles[0] = Closed()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def child() -> None:
        kept.own.reset_after_fork(closing=False)
        gc.collect()
        results.put((mine.closed, theirs.closed, list(kept.own.handles), kept.own.process == os.getpid()))

    with other_thread(kept) as theirs:
        process = context.Process(target=child)
        process.start()
        assert results.get() == (False, False, [], True)
        process.join(60)
    assert theirs.closed
