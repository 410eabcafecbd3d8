"""Counts are exact over processes and threads, however these got them, and nothing is left behind."""

import copy
import multiprocessing
import os
import pickle
import signal
import threading
from typing import Any

import pytest
from leftovers import nothing_left

from loaderkit.system.shared_counts import SharedCounts

TIMES = 300


def add(counts: SharedCounts) -> None:
    threads = [threading.Thread(target=lambda: [counts.add("b", 2) for _ in range(TIMES)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def add_for_ever(counts: SharedCounts, started: Any) -> None:
    counts.add("a", 1)
    started.set()
    while True:
        counts.add("a", 1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_counts_are_exact_over_processes_and_threads(method: str) -> None:
    counts = SharedCounts("a", "b")
    assert counts.read() == {"a": 0, "b": 0}
    context: Any = multiprocessing.get_context(method)
    processes = [context.Process(target=add, args=(counts,)) for _ in range(2 if method == "fork" else 1)]
    for process in processes:
        process.start()
    add(copy.deepcopy(counts))
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert counts.read() == {"a": 0, "b": 2 * 3 * TIMES * (len(processes) + 1)}


def test_a_killed_process_leaves_nothing_and_blocks_nobody() -> None:
    context: Any = multiprocessing.get_context("fork")
    with nothing_left():
        counts = SharedCounts("a")
        counts.read()
        for _ in range(10):
            started = context.Event()
            process = context.Process(target=add_for_ever, args=(counts, started))
            process.start()
            assert started.wait(30)
            os.kill(process.pid, signal.SIGKILL)
            process.join(30)
            process.close()
            before = counts.read()["a"]
            counts.add("a", 5)
            assert counts.read()["a"] == before + 5 > 5
        del counts, started, process


def test_a_copy_that_finds_no_memory_counts_for_itself() -> None:
    with nothing_left():
        counts = SharedCounts("a")
        unused = pickle.loads(pickle.dumps(counts))
        counts.add("a", 1)
        sent = pickle.dumps(counts)
        shared = pickle.loads(sent)
        shared.add("a", 2)
        assert (counts.read(), unused.read()) == ({"a": 3}, {"a": 0})
        del counts, shared, unused
        assert pickle.loads(sent).read() == {"a": 0}
