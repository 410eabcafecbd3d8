"""Memory that processes share, without a name: whoever is killed, nothing stays behind."""

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

ALIGNMENT = 64  # bytes, a cache line
LARGEST = 1 << 30  # bytes; a larger batch goes another way


class Slot:
    """A place for one batch. It grows with the batches, in whichever process needs more.

    Pickles to a process that is being started, and to no other.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._fd = _anonymous_file()
        self._mapping: mmap.mmap | None = None

    def mapping(self, size: int, *, grow: bool = False) -> mmap.mmap:
        """Return at least so many bytes of the memory.

        Args:
            size: In bytes.
            grow: Whether it may have fewer yet.

        Raises:
            OSError: If there is no memory left.
        """
        if self._mapping is None or len(self._mapping) < size:
            if grow and os.fstat(self._fd).st_size < size:
                _reserve(self._fd, max(mmap.PAGESIZE, size * 5 // 4))
            # Views of a smaller mapping keep that one.
            self._mapping = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        return self._mapping

    def lease(self, size: int, free: Callable[[int], Any]) -> Any:
        """Return the memory as a buffer, and call `free` with the slot's number when its last view is gone."""
        buffer = (ctypes.c_char * size).from_buffer(self.mapping(size))
        weakref.finalize(buffer, free, self.number).atexit = False
        return buffer

    def close(self) -> None:
        """Let go of it; views stay as they are."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"number": self.number, "fd": reduction.DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.number, self._fd = state["number"], state["fd"].detach()
        self._mapping = None


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("loaderkit")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _reserve(fd: int, size: int) -> None:
    """Make a file larger, with memory behind all of it: without, the first write that finds none would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)
