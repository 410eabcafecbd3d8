"""Calls that wait: in order, many at a time, and nobody waits for what is no longer wanted."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import scripts
from hypothesis import given, settings
from hypothesis import strategies as st
from tier import examples

from loaderkit.system.parallel import map_waiting


@settings(max_examples=examples(60), deadline=None)
@given(values=st.lists(st.integers(), max_size=40), at_once=st.integers(1, 9))
def test_results_come_in_order(values: list[int], at_once: int) -> None:
    assert list(map_waiting(lambda value: 2 * value, iter(values), at_once)) == [2 * value for value in values]


class Counted:
    """Counts how many calls run at a time."""

    def __init__(self) -> None:
        self.most, self._running, self._lock = 0, 0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1


def test_as_many_calls_run_as_allowed_and_no_more() -> None:
    """Each waits until four are there; a fifth never is."""
    barrier, counted = threading.Barrier(4), Counted()

    def call(value: int) -> int:
        with counted:
            barrier.wait(60)
        return value

    assert list(map_waiting(call, range(12), 4)) == list(range(12))
    assert counted.most == 4


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


class Attempts:
    """Calls that return their value, of which some first do something else at each attempt; and how often each was made."""

    def __init__(self, does: dict[int, list[Callable[[], object]]]) -> None:
        self.made: Counter[int] = Counter()
        self._does, self._lock = does, threading.Lock()

    def __call__(self, value: int) -> int:
        with self._lock:
            does = self._does.get(value, [])[self.made[value] :][:1]
            self.made[value] += 1
        for one in does:
            one()
        return value


def failing(after: Callable[[], object]) -> Callable[[], object]:
    def fail() -> None:
        after()
        raise OSError("no answer")

    return fail


@pytest.mark.parametrize("late", [[0], [5], [23], [7, 8, 22], [4, 5, 6, 7], [5, 8, 11, 14, 17, 20]])
@pytest.mark.parametrize("at_once", [3, 4])
def test_a_late_call_is_made_once_more(late: list[int], at_once: int) -> None:
    """The first attempts do not end before all results are there, and may take all threads, and more."""
    over = threading.Event()
    calls = Attempts({value: [lambda: over.wait(100)] for value in late})
    begun = time.monotonic()
    assert list(map_waiting(calls, range(24), at_once, hedge=True)) == list(range(24))
    assert time.monotonic() - begun < 90
    over.set()
    assert [calls.made[value] for value in late] == [2] * len(late)
    assert max(calls.made.values()) == 2


def test_late_calls_do_not_let_more_run_at_a_time() -> None:
    """A call that was late has a thread of its own until it ends."""
    counted = Counted()

    def work() -> None:
        with counted:
            time.sleep(0.02)

    over = threading.Event()
    late = {value: [lambda: over.wait(0.3)] for value in (8, 12, 16)}
    calls = Attempts({value: [work] for value in range(200)} | late)
    assert list(map_waiting(calls, range(200), 4, hedge=True)) == list(range(200))
    over.set()
    assert counted.most <= 6  # of 7 threads; on a busy machine another call may be late


@pytest.mark.parametrize("quick", [0, 4])
def test_calls_that_all_take_long_are_not_late(quick: int) -> None:
    """Also if the first ones were quick: those that run are compared too."""
    calls = Attempts({value: [lambda: time.sleep(0.3)] for value in range(quick, 24)})
    assert list(map_waiting(calls, range(24), 8, hedge=True)) == list(range(24))
    assert calls.made.total() <= 28  # a thread may have waited for a CPU


def test_no_call_is_made_twice_unless_told() -> None:
    calls = Attempts({5: [lambda: time.sleep(0.5)]})
    assert list(map_waiting(calls, range(24), 4)) == list(range(24))
    assert calls.made.total() == 24


def test_a_result_counts_before_an_error() -> None:
    """Whichever attempt fails: the second lets the first end."""
    failed = threading.Event()
    second_fails = Attempts({5: [lambda: failed.wait(60), failing(failed.set)]})
    first_fails = Attempts({5: [failing(lambda: failed.wait(60)), failed.set]})
    for calls in (second_fails, first_fails):
        failed.clear()
        assert list(map_waiting(calls, range(24), 4, hedge=True)) == list(range(24))
        assert calls.made[5] == 2
    both_fail = Attempts({5: [failing(lambda: failed.wait(60)), failing(failed.set)]})
    failed.clear()
    with pytest.raises(OSError, match="no answer"):
        list(map_waiting(both_fail, range(24), 4, hedge=True))


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
