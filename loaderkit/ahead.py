"""Pure functions that a thread computes ahead, beside what this process does meanwhile."""

import functools
import os
from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

from loaderkit.cpus import Cpus

T = TypeVar("T")


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


@functools.lru_cache(maxsize=1)
def _has_second_cpu(process: int) -> bool:  # noqa: ARG001 - a fork asks anew
    return Cpus.detect().usable > 1
