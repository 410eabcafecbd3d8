"""Pure functions that a thread computes ahead, beside what this process does meanwhile."""

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from loaderkit.cpus import Cpus

T = TypeVar("T")


class Ahead(Generic[T]):
    """What a function returns, computed by a thread from now on.

    Who asks before the thread has begun computes it himself: nobody waits for longer than that takes. So it is where there is no
    second CPU, and in a fork of this process, which has no such thread.

    Args:
        function: A pure one, in which numpy does the work: it lets other threads go on.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function, self._process = function, os.getpid()
        self._future: Future[T] | None = None
        if (thread := _thread(self._process)) is not None:
            try:
                self._future = thread.submit(function)
            except RuntimeError:  # this process is about to end
                self._future = None

    def result(self) -> T:
        """Return it; what the function raises is raised here."""
        future = self._future
        if future is None or self._process != os.getpid() or future.cancel():
            return self._function()
        return future.result()


@functools.lru_cache(maxsize=1)
def _thread(process: int) -> ThreadPoolExecutor | None:
    """Return the process's only such thread, if a CPU is left for it."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"ahead in {process}") if Cpus.detect().usable > 1 else None
