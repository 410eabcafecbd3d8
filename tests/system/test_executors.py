"""Work on any executor: each task has its result or its error, and few tasks wait."""

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
from tasks import failing

from loaderkit.system import process_pool
from loaderkit.system.process_pool import LostTaskError, map_in_processes, map_on_executor, map_tasks


@pytest.mark.parametrize("kind", [ProcessPoolExecutor, ThreadPoolExecutor])
def test_each_task_has_its_result_or_its_error(kind: Callable[[int], Executor]) -> None:
    with kind(2) as executor:
        results = dict(map_tasks(failing, range(40), executor=executor))
        assert {task: result for task, result in results.items() if task != 2} == {
            task: 10 * task for task in range(40) if task != 2
        }
        assert "UnicodeDecodeError: 'utf-8' codec can't decode" in str(results[2])
        assert executor.submit(failing, 1).result() == 10  # it stays open


class ByHand(Executor):
    """Does the newest task when it is asked for more."""

    def __init__(self) -> None:
        self.open: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.most = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.open.append((future, lambda: fn(*args, **kwargs)))
        self.most = max(self.most, len(self.open))
        if len(self.open) == 3:
            self.finish()
        return future

    def finish(self) -> None:
        future, call = self.open.pop()
        future.set_result(call())


def test_few_tasks_are_in_flight_and_others_go_on_while_one_takes_long() -> None:
    executor, asked = ByHand(), []

    def tasks() -> Iterator[int]:
        for task in range(100):
            asked.append(task)
            yield task

    work = map_on_executor(str, tasks(), executor, in_flight=3)
    done = [next(work)[0] for _ in range(98)]
    assert len(asked) == 100
    assert executor.most == 3
    assert {0, 1}.isdisjoint(done)
    left = [future for future, _ in executor.open]
    work.close()
    assert len(left) == 2
    assert all(future.cancelled() for future in left)  # nothing goes on after the caller has left


def kill_at_2(task: int) -> int:
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_broken_pool_is_an_error_of_each_task_that_it_lost() -> None:
    with ProcessPoolExecutor(1) as executor:
        results = dict(map_tasks(kill_at_2, range(40), executor=executor))
    assert len(results) == 40
    assert (results[0], results[1]) == (0, 1)
    lost = [results[task] for task in range(2, 40)]
    assert all(isinstance(error, LostTaskError) and "a worker process was killed" in str(error) for error in lost)


def test_what_does_not_pickle_and_an_executor_that_is_shut_down_are_errors() -> None:
    with ProcessPoolExecutor(1) as executor:
        [(_, error)] = map_tasks(lambda task: task, [0], executor=executor)
        assert isinstance(error, LostTaskError)
        assert "ickl" in str(error)
    [(_, error)] = map_tasks(failing, [0], executor=executor)
    assert "cannot schedule new futures after shutdown" in str(error)


def test_settings_that_contradict_each_other_are_refused() -> None:
    wrong: Any = object()
    with pytest.raises(TypeError, match=r"executor is a object, wanted .*client.get_executor\(\)"):
        map_tasks(failing, [0], executor=wrong)
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(ValueError, match="2 processes and an executor are given, wanted one of them"),
    ):
        map_tasks(failing, [0], executor=executor, jobs=2)


def next_interrupted(work: Iterator[Any], point: int) -> bool:
    """Press Ctrl-C during `next(work)`, before a line or just after a lock is taken, counted in the order in which they come.

    Only in code that waits: Python drops an interrupt in code that runs for the garbage collector.

    Returns:
        Whether Ctrl-C was pressed and nothing was raised. It is not if there are fewer points.
    """
    points = itertools.count(1)
    files = {module.__file__ for module in (process_pool, concurrent.futures._base, threading, queue)}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        locked = event == "return" and frame.f_code.co_name == "__enter__"
        if (event == "line" or locked) and next(points) == point:
            signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        next(work)
    finally:
        sys.settrace(None)
    return next(points) > point


@pytest.mark.parametrize(("result", "step"), [(0, 7), (1, 1)])
def test_an_interrupt_anywhere_is_raised_and_ends_the_processes(result: int, step: int) -> None:
    for point in itertools.count(1, step):
        work = map_in_processes(time.sleep, [0, 0.1], jobs=2, fork=True)
        for _ in range(result):
            next(work)
        with contextlib.closing(work), contextlib.suppress(KeyboardInterrupt):
            assert not next_interrupted(work, point)
            break
        assert not multiprocessing.active_children()
    assert point > 3, "tests nothing"
