"""Run calls that wait, such as requests, many at a time, and get their results in order."""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar, cast

T = TypeVar("T")
A = TypeVar("A")

_LATE = 3.0  # a call is late if it takes this many times the median of other calls
_EARLIEST_S = 0.1  # no call is late before it has taken this long
_COMPARED = 64  # the number of calls in the median, those that ended last
_LEAST = 4  # the fewest calls that have to end before a median is used


def map_waiting(call: Callable[[A], T], arguments: Iterable[A], at_once: int, *, hedge: bool = False) -> Iterator[T]:
    """Yield `call(argument)` for each argument in their order, with up to `at_once` calls at a time.

    Calls run in daemon threads, at most `2 * at_once` ahead of the results that were taken. Unlike with a ThreadPoolExecutor, nothing
    waits for calls that are no longer wanted: not Ctrl-C, not the end of the process.

    Args:
        call: A function that mostly waits, such as a request.
        arguments: One for each call. A single call runs in this thread.
        at_once: The most calls at a time.
        hedge: Make the call of the next result a second time if it takes three times as long as most others, and longer than 0.1 s.
            The first result counts. From J. Dean and L. A. Barroso, "The Tail at Scale", CACM 56(2), 2013.

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
    work = _Work(call, at_once, hedge)
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


@dataclass(slots=True, eq=False)
class _Call(Generic[A, T]):
    argument: A
    begun: float | None = None  # time.monotonic()
    attempts: int = 1
    failures: int = 0
    is_over: bool = False
    result: T | None = None
    error: BaseException | None = None


class _Work(Generic[A, T]):
    """Threads that share a list of calls."""

    def __init__(self, call: Callable[[A], T], at_once: int, hedge: bool) -> None:
        self._call, self._at_once, self._hedge = call, at_once, hedge
        self._threads = 0
        lock = threading.Lock()
        self._is_work, self._has_ended = threading.Condition(lock), threading.Condition(lock)
        self._to_do: list[_Call[A, T]] = []
        self._taken_next: list[_Call[A, T]] = []
        self._seconds: deque[float] = deque(maxlen=_COMPARED)  # of calls that ended
        self._is_stopped = False

    @property
    def ahead(self) -> int:
        """Calls whose results have not been taken."""
        return len(self._taken_next)

    def add(self, argument: A) -> None:
        call: _Call[A, T] = _Call(argument)
        with self._is_work:
            self._taken_next.append(call)
            self._to_do.append(call)
            self._is_work.notify()
        if self._threads < self._at_once:
            self._start_thread()

    def take(self) -> T:
        """Wait for the oldest result and return it, or raise the call's error."""
        call = self._taken_next[0]
        with self._has_ended:
            while not call.is_over:
                left_s = self._patience_s(call)
                if left_s is None or left_s > 0:
                    self._has_ended.wait(left_s)
                else:
                    call.attempts += 1
                    self._to_do.insert(0, call)
                    self._start_thread()  # in place of the one that waits
            self._taken_next.pop(0)
        if call.error is not None:
            raise call.error
        return cast("T", call.result)

    def stop(self) -> None:
        """Let the threads end after the calls that they make now."""
        with self._is_work:
            self._is_stopped = True
            self._to_do.clear()
            self._is_work.notify_all()

    def _patience_s(self, call: _Call[A, T]) -> float | None:
        """Return the seconds until a call is late; None if that is unknown, or if the call is already made twice.

        For a call that has not begun: the seconds after which to ask again.
        """
        if not self._hedge or call.attempts > 1 or len(self._seconds) < _LEAST:
            return None
        if call.begun is None:
            return _EARLIEST_S
        now = time.monotonic()
        running = [now - other.begun for other in self._taken_next[1:] if other.begun is not None and not other.is_over]
        return max(_EARLIEST_S, _LATE * statistics.median([*self._seconds, *running])) - (now - call.begun)

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._run, name="loaderkit request", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._is_work:
                self._is_work.wait_for(lambda: self._to_do or self._is_stopped)
                if self._is_stopped:
                    return
                call = self._to_do.pop(0)
                begun = time.monotonic()
                call.begun = call.begun or begun
            result, error = None, None
            try:
                result = self._call(call.argument)
            except BaseException as raised:
                error = raised
            with self._has_ended:
                if error is None:
                    self._seconds.append(time.monotonic() - begun)
                else:
                    call.failures += 1
                if call.is_over:  # another thread was started for it, and was earlier
                    self._threads -= 1
                    return
                if error is None or call.failures == call.attempts:
                    call.result, call.error, call.is_over = result, error, True
                    self._has_ended.notify()
