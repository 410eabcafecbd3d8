"""Anonymous memory that processes share. Nothing is left on the system, even if the processes are killed."""

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import resource
import sys
from collections.abc import Callable, Collection
from multiprocessing import reduction
from typing import Any

import numpy as np

from loaderkit.system.types import Array

ALIGNMENT = 64  # bytes, a cache line
LARGEST = 1 << 30  # the most bytes of a slot
STOP = (1 << 63) - 1  # the value of `wanted` if no task is wanted any more
LARGE = 1 << 20  # bytes; it is not worth giving back less memory


class Slots:
    """Shared memory for batches: equal parts of one sparse file in memory. Each part is a slot for one batch.

    A slot has as much memory as its recent batches needed. It has one owner at a time: the loader, or the worker that
    has the slot's task. A head before the slots holds numbers that all processes see: the first task that is still
    wanted, each worker's current task (-1 for none), and the bytes of memory that each slot has.

    Slots can be pickled only for a process that is being started.

    Raises:
        OSError: If no file can be opened or mapped.
    """

    def __init__(self, count: int, workers: int, largest: int = LARGEST) -> None:
        self.count, self.workers = count, workers
        self.stride = _stride(count, largest)
        self._head = _pages(8 * (1 + workers + count))
        self._fd = -1
        while self._fd < 0:
            self._fd = os.memfd_create("loaderkit")
            try:
                os.ftruncate(self._fd, self._size)
                self._map()
            except BaseException as error:
                self.close()
                if not (isinstance(error, OSError) and error.errno == errno.ENOMEM and self.stride > LARGE):
                    raise
                # The address space is too small.
                self.stride = self.stride // 2 // mmap.PAGESIZE * mmap.PAGESIZE
        for worker in range(workers):
            self.doing[worker] = -1

    def _map(self) -> None:
        self._memory = mmap.mmap(self._fd, self._size)
        self.memory = np.frombuffer(self._memory, np.uint8)
        head = 1 + self.workers
        words = memoryview(self._memory)[: 8 * (head + self.count)].cast("q")  # faster than numpy for single words
        self.wanted = words[:1]  # number of the first task whose batch is still wanted; STOP at the end
        self.doing, self.reserved = words[1:head], words[head:]
        self._place = _leased(self.stride)
        self._address = self.memory.ctypes.data + self._head  # of the first slot

    def start(self, slot: int) -> int:
        """Return the offset of a slot in the file, in bytes."""
        return self._head + slot * self.stride

    def put_key(self, slot: int, key: bytes) -> None:
        """Write a task's key into a slot.

        Raises:
            OSError: If memory runs out.
        """
        self.reserve(slot, len(key))
        start = self._head + slot * self.stride
        self._memory[start : start + len(key)] = key

    def key(self, slot: int, size: int) -> bytes:
        """Return the first `size` bytes of a slot: the key that `put_key` wrote."""
        start = self.start(slot)
        return self._memory[start : start + size]

    def reserve(self, slot: int, size: int) -> None:
        """Allocate memory for a slot's first `size` bytes. A write to memory that is not there may kill the process.

        Raises:
            OSError: If memory runs out, or a slot cannot be that large.
        """
        if size <= self.reserved[slot]:
            return
        if size > self.stride:
            raise OSError(errno.EFBIG, f"{size:,} bytes, and a slot may have {self.stride:,}")
        grows = 2 * self.reserved[slot] > size  # sizes vary: leave room for a slightly larger batch
        wanted = min(self.stride, _pages(size * 5 // 4 if grows else size))
        os.posix_fallocate(self._fd, self.start(slot), wanted)
        self.reserved[slot] = wanted

    def bytes(self, slot: int, size: int) -> Array:
        """Return a view (size,) uint8 of a slot's memory. The slot may get its next batch while the view exists."""
        start = self._head + slot * self.stride
        return self.memory[start : start + size]

    def lease(self, slot: int, free: Callable[[int], object]) -> Any:
        """Return a slot's memory as a buffer; call `free(slot)` when the last view of it is gone."""
        place = self._place.from_address(self._address + slot * self.stride)  # from_buffer takes three times as long
        place.memory, place.slot, place.free = self._memory, slot, free
        return place

    def cut(self, slot: int, size: int) -> None:
        """Give a slot's memory back to the system except its first `size` bytes. There must be no view of the slot."""
        size = _pages(size)
        rest = self.reserved[slot] - size
        self.reserved[slot] = size  # set first: if the rest is interrupted, the next batch reserves memory again
        with contextlib.suppress(OSError):
            self._memory.madvise(mmap.MADV_REMOVE, self.start(slot) + size, rest)

    def keep(self, kept: Collection[int]) -> None:
        """Give back the memory of all slots except the `kept` ones, which have views.

        No process may write to slots any more.
        """
        if kept and self._fd >= 0:  # with no slot to keep, `close` frees all memory
            for slot in range(self.count):
                if slot not in kept and self.reserved[slot]:
                    self.cut(slot, 0)

    def close(self) -> None:
        """Close the file and unmap it. Leased memory stays until its views are gone."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        for name in ("_memory", "memory"):
            vars(self).pop(name, None)
        self.doing = self.reserved = self.wanted = memoryview(b"").cast("q")

    @property
    def _size(self) -> int:
        return self._head + self.count * self.stride

    def __getstate__(self) -> dict[str, object]:
        shape = {"count": self.count, "workers": self.workers, "stride": self.stride, "_head": self._head}
        return shape | {"_fd": reduction.DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"_fd": state["_fd"].detach()})
        self._map()


class _Leased:
    """A buffer on a slot's memory. It calls `free(slot)` when the last view of it is gone."""

    memory: mmap.mmap  # stays mapped as long as this object lives
    slot = -1
    free: Callable[[int], object]
    is_finalizing = staticmethod(sys.is_finalizing)  # when the interpreter ends, this module's `sys` may be gone

    def __del__(self) -> None:
        if self.slot >= 0 and not self.is_finalizing():
            self.free(self.slot)


@functools.lru_cache(maxsize=8)
def _leased(size: int) -> Any:
    return type("_LeasedBytes", (_Leased, ctypes.c_char * size), {})


def _stride(count: int, largest: int) -> int:
    """Return the bytes of a slot. All slots take at most an eighth of the allowed address space and file size."""
    stride = largest
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            stride = min(stride, limit // 8 // count)
    return max(mmap.PAGESIZE, stride // mmap.PAGESIZE * mmap.PAGESIZE)


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
