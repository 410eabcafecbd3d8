"""Run calls that wait, such as requests, many at a time, and get their results in order."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")
A = TypeVar("A")


def map_waiting(call: Callable[[A], T], arguments: Iterable[A], at_once: int) -> Iterator[T]:
    """Yield `call(argument)` for each argument in their order, with up to `at_once` calls at a time.

    Calls run in daemon threads, at most `2 * at_once` ahead of the results that were taken. Unlike with a ThreadPoolExecutor, nothing
    waits for calls that are no longer wanted: not Ctrl-C, not the end of the process.

    Args:
        call: A function that mostly waits, such as a request.
        arguments: One for each call. A single call runs in this thread.
        at_once: The most calls at a time.

    Raises:
        Exception: A call's error, when its result is due.

    Examples:
        >>> list(map_waiting(abs, [-3, 2, -1], at_once=2))
        [3, 2, 1]
    """
    waiting = iter(arguments)
    first = list(islice(waiting, 2))
    if len(first) < 2:
        yield from map(call, first)
        return
    work = _Work(call, at_once)
    try:
        for argument in first:
            work.add(argument)
        for argument in waiting:
            if work.ahead == 2 * at_once:
                yield work.take()
            work.add(argument)
        while work.ahead:
            yield work.take()
    finally:
        work.stop()


class _Work(Generic[A, T]):
    """Threads that share a list of calls."""

    def __init__(self, call: Callable[[A], T], at_once: int) -> None:
        self._call, self._at_once = call, at_once
        self._threads = 0
        self._changed = threading.Condition()
        self._calls: list[tuple[A, Future[T]]] = []  # not begun
        self._results: list[Future[T]] = []  # not taken
        self._is_over = False

    @property
    def ahead(self) -> int:
        """Calls whose results have not been taken."""
        return len(self._results)

    def add(self, argument: A) -> None:
        result: Future[T] = Future()
        self._results.append(result)
        with self._changed:
            self._calls.append((argument, result))
            self._changed.notify()
        if self._threads < self._at_once:
            self._threads += 1
            threading.Thread(target=self._run, name="loaderkit request", daemon=True).start()

    def take(self) -> T:
        """Wait for the oldest result."""
        return self._results.pop(0).result()

    def stop(self) -> None:
        """Let the threads end after the calls that they make now."""
        with self._changed:
            self._is_over = True
            self._calls.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._is_over)
                if self._is_over:
                    return
                argument, result = self._calls.pop(0)
            try:
                result.set_result(self._call(argument))
            except BaseException as error:
                result.set_exception(error)
