"""A few counts that a process and its workers share."""

import contextlib
import mmap
import os
import sys
import threading
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class _Turn:
    lock = threading.Lock()

    @classmethod
    def reset(cls) -> None:
        cls.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Turn.reset)  # a thread that holds it is missing in the child


class SharedCounts:
    """Counts that only grow. Processes that got them by fork, or by pickle while their maker lives, share them.

    The counts are in memory that has no name in any folder, and that ends with the last of these processes. It is made when the
    counts are first used, so use them before you start workers. On another machine a pickled copy starts at 0; so does each copy
    on systems other than Linux.

    Args:
        names: The counts' names.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._fd = -1
        self._memory: Any = None

    def add(self, name: str, number: int) -> None:
        """Add to a count atomically: other processes and threads may add at the same time."""
        memory, place = self._opened(), self._names.index(name)
        with self._alone():
            memory[place] += number

    def read(self) -> dict[str, int]:
        """Return the counts by name."""
        return dict(zip(self._names, self._opened().tolist(), strict=True))

    def _opened(self) -> Any:
        if self._memory is None:
            with _Turn.lock:
                if self._memory is None:
                    self._make()
        return self._memory

    def _make(self) -> None:
        if sys.platform == "linux":
            fd = os.memfd_create("loaderkit-" + os.urandom(16).hex())
            os.ftruncate(fd, 8 * len(self._names))
            self._map(fd)
        else:
            self._memory = array("q", [0] * len(self._names))

    def _map(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)
        self._memory = memoryview(mmap.mmap(fd, 8 * len(self._names))).cast("q")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with _Turn.lock:
            if self._fd < 0:
                yield
                return
            import fcntl

            fcntl.lockf(self._fd, fcntl.LOCK_EX)  # of this process; the kernel releases it if the process is killed
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[object, ...]:
        if self._fd < 0:  # not used yet
            return type(self), self._names
        path = Path(f"/proc/{os.getpid()}/fd/{self._fd}")
        return _attached, (self._names, path, path.readlink())


def _attached(names: tuple[str, ...], path: Path, target: Path) -> SharedCounts:
    """Return the counts of the process that pickled them, or new counts if that process does not run on this machine."""
    found = SharedCounts(*names)
    with contextlib.suppress(OSError):
        if path.readlink() == target:
            found._map(os.open(path, os.O_RDWR))
    return found
