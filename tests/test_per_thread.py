"""Each thread has its own, which goes with the thread, with what keeps it, and never with a fork."""

import copy
import gc
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from loaderkit.per_thread import Opened, PerThread


class Closed:
    """Knows that it is closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@contextmanager
def other_thread(kept: PerThread[Opened]) -> Iterator[Closed]:
    """Let another thread have something open meanwhile."""
    found, ready, end = Closed(), threading.Event(), threading.Event()

    def stay() -> None:
        kept.own.handles[0] = found
        ready.set()
        end.wait(30)

    thread = threading.Thread(target=stay)
    thread.start()
    assert ready.wait(30)
    try:
        yield found
    finally:
        end.set()
        thread.join(30)


def test_a_threads_own_is_closed_when_it_ends() -> None:
    kept = PerThread(Opened)
    mine = kept.own.handles[0] = Closed()
    with other_thread(kept) as theirs:
        assert not theirs.closed
    assert theirs.closed
    assert not mine.closed
    assert kept.own.handles[0] is mine


def test_a_copy_has_none_yet() -> None:
    kept = PerThread(list, (1, 2))
    kept.own.append(3)
    for made in (copy.copy(kept), copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert made.own == [1, 2]
    assert kept.own == [1, 2, 3]


def test_a_fork_closes_nothing_of_its_parents_threads() -> None:
    """They may be in the midst of a read, with a lock that closing waits for."""
    kept = PerThread(Opened)
    mine = kept.own.handles[0] = Closed()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def child() -> None:
        kept.own.leave()
        gc.collect()
        results.put((mine.closed, theirs.closed, list(kept.own.handles), kept.own.process == os.getpid()))

    with other_thread(kept) as theirs:
        process = context.Process(target=child)
        process.start()
        assert results.get() == (False, False, [], True)
        process.join(30)
    assert theirs.closed
