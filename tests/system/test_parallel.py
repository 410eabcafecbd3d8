"""Calls that wait: in order, many at a time, and nobody waits for what is no longer wanted."""

import signal
import threading
import time
from pathlib import Path

import pytest
import scripts
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderkit.system.parallel import map_waiting


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.integers(), max_size=40), at_once=st.integers(1, 9))
def test_results_come_in_order(values: list[int], at_once: int) -> None:
    assert list(map_waiting(lambda value: 2 * value, iter(values), at_once)) == [2 * value for value in values]


def test_as_many_calls_run_as_allowed_and_no_more() -> None:
    """Each waits until four are there; a fifth never is."""
    barrier = threading.Barrier(4)
    running, most = 0, 0
    lock = threading.Lock()

    def call(value: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(60)
        with lock:
            running -= 1
        return value

    assert list(map_waiting(call, range(12), 4)) == list(range(12))
    assert most == 4


def test_calls_do_not_run_far_ahead() -> None:
    """Results that nobody takes would fill the memory."""
    begun: list[int] = []
    results = map_waiting(lambda value: begun.append(value) or value, range(1000), 3)
    assert next(results) == 0
    time.sleep(0.2)
    assert len(begun) <= 7
    assert list(results) == list(range(1, 1000))


def test_an_error_comes_at_its_place_and_ends_the_others() -> None:
    def call(value: int) -> int:
        if value == 5:
            raise KeyError("five")
        return value

    got: list[int] = []
    with pytest.raises(KeyError, match="five"):
        got.extend(map_waiting(call, range(100), 3))
    got = []
    results = map_waiting(call, range(100), 3)
    got += [next(results) for _ in range(5)]
    assert got == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError):
        next(results)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "loaderkit request"]


def test_threads_end_with_the_results() -> None:
    before = len(names())
    list(map_waiting(abs, range(50), 8))
    left = map_waiting(abs, range(50), 8)
    next(left)
    left.close()
    end = time.monotonic() + 20
    while len(names()) > before and time.monotonic() < end:
        time.sleep(0.01)
    assert len(names()) <= before  # threads of an earlier test may end too


ENDS = """
import threading, sys
from loaderkit.system.parallel import map_waiting
forever = threading.Event()
results = map_waiting(lambda value: forever.wait() if value else value, range(20), 4)
print(next(results), flush=True)
"""


@pytest.mark.parametrize(
    ("how", "code"), [("", 0), ("results.close()", 0), ("raise KeyboardInterrupt", -signal.SIGINT)]
)
def test_nothing_waits_for_calls_that_do_not_end(how: str, code: int, tmp_path: Path) -> None:
    said = scripts.run_code(tmp_path, ENDS + how, code=code)
    assert said.startswith("0\n")
    assert ("KeyboardInterrupt" in said) == how.startswith("raise")
