"""Pure functions that a thread computes ahead, beside what this process does meanwhile."""

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, Generic, TypeVar

from loaderkit.system.cpus import Cpus

T = TypeVar("T")

_current_cpu: Any = getattr(ctypes.CDLL(None), "sched_getcpu", None) if sys.platform == "linux" else None


class Ahead(Generic[T]):
    """What a function returns, computed by a thread from now on.

    Where there is no second CPU it is computed when it is asked for; so it is in a fork of this process, which lacks the thread.
    The thread is a new one: one that has waited for work would be woken on the CPU of who gives it, and keep that for milliseconds.

    Args:
        function: A pure one, in which numpy does the work: it lets other threads go on.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function, self._process = function, os.getpid()
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._thread: Thread | None = None
        if _has_second_cpu(self._process):
            thread = Thread(target=self._run, name="loaderkit ahead")
            try:
                thread.start()
            except RuntimeError:  # this process has no threads left, or is about to end
                return
            self._thread = thread
            _keep_off(thread)

    def result(self) -> T:
        """Return it; what the function raises is raised here."""
        if self._thread is None or self._process != os.getpid():
            return self._function()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._function())
        except BaseException as error:
            self._error = error


def _keep_off(thread: Thread) -> None:
    """Move a thread to other CPUs than the one this runs on.

    `Thread.start` sleeps until the thread runs: often here, where both would take turns, 4 ms each, though another CPU is idle.
    """
    if _current_cpu is not None and thread.native_id is not None:
        with suppress(OSError):  # it has ended, there is no other CPU, or a sandbox forbids it
            os.sched_setaffinity(thread.native_id, os.sched_getaffinity(0) - {_current_cpu()})


@functools.lru_cache(maxsize=1)
def _has_second_cpu(process: int) -> bool:  # noqa: ARG001 - a fork asks anew
    return Cpus.detect().usable > 1
