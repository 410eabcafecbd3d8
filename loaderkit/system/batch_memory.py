"""Memory of large batches that are gone, for the next ones.

The C library gives the memory of large blocks back to the system, and a page that comes from there anew takes longer than it takes
to fill it: a batch of 38 MB 11 ms.
"""

import contextlib
import math
import mmap
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

LARGE = 8 << 20  # bytes; what is smaller the C library soon keeps for itself


class BufferPool:
    """Lends memory, which comes back when the last array or tensor over it is gone.

    It keeps as much as its largest batch took. Threads may share one; each forked process has its own. A pickled one has nothing.
    """

    def __init__(self) -> None:
        self._free: list[_Memory] = []  # what came back last at the end
        self._most = 0  # bytes

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike, batch_bytes: int) -> npt.NDArray[Any]:
        """Return an array that holds anything.

        Args:
            shape: Its shape.
            dtype: Of numbers.
            batch_bytes: What its batch has taken, with this.

        Raises:
            MemoryError: If the system has none.
        """
        size = np.dtype(dtype).itemsize * math.prod(shape)
        self._most = max(self._most, batch_bytes)
        memory = self._find(size)
        lent = np.ndarray.__new__(_Lent, memory.shape, np.uint8, memory)
        lent.pool, lent.memory = self, memory
        return np.ndarray(shape, dtype, lent)

    def _find(self, size: int) -> "_Memory":
        for at in range(len(self._free) - 1, -1, -1):
            with contextlib.suppress(IndexError):  # another thread was faster
                memory = self._free.pop(at)
                if size <= len(memory) <= 2 * size:
                    return memory
                self._free.insert(at, memory)
        try:
            # Not by numpy, which asks for huge pages: the system may take 50 ms to find them, where others take 10.
            mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE)
        except OSError as error:
            raise MemoryError(f"loader: the system has no {size:,} bytes of memory for a batch: {error}.") from error
        return np.ndarray.__new__(_Memory, (size,), np.uint8, mapped)

    def take_back(self, memory: "_Memory") -> None:
        """Keep memory for the next batch, and no more than that may need."""
        self._free.append(memory)
        while sum(map(len, self._free)) > self._most:
            with contextlib.suppress(IndexError):
                self._free.pop(0)

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


class _Memory(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes. Of a class of their own: else arrays over what is lent would refer to them, and not to that."""


class _Lent(np.ndarray[Any, np.dtype[np.uint8]]):
    """What arrays over lent memory refer to."""

    pool: BufferPool | None = None
    memory: _Memory
    is_finalizing = staticmethod(sys.is_finalizing)  # at the very end this module has no `sys` any more

    def __del__(self) -> None:
        if self.pool is not None and not self.is_finalizing():
            self.pool.take_back(self.memory)


class Lending:
    """What a batch has from a pool.

    Args:
        pool: Which.
    """

    def __init__(self, pool: BufferPool) -> None:
        self.pool = pool
        self.filled: dict[int, Tensor] = {}  # whose rows are the batch's samples, by their addresses
        self._bytes = 0

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array from the pool."""
        self._bytes += np.dtype(dtype).itemsize * math.prod(shape)
        return self.pool.empty(shape, dtype, self._bytes)


class _Here(threading.local):
    lends: BufferPool | Lending | None = None


# What lends memory to the batch that this thread makes: set to a pool when it begins, and at its end to what was there.
here = _Here()


@contextlib.contextmanager
def lends(pool: BufferPool) -> Iterator[None]:
    """Make a batch with memory from a pool. Where 0.5 us matter, `here` is set by hand."""
    before, here.lends = here.lends, pool
    try:
        yield
    finally:
        here.lends = before


def current() -> Lending | None:
    """Return what the batch that this thread makes has from its pool."""
    found = here.lends
    if isinstance(found, BufferPool):  # few batches want any
        found = here.lends = Lending(found)
    return found


def empty_array(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array of numbers for a batch to be written into, which holds anything."""
    dtype = np.dtype(dtype)
    large = dtype.itemsize * math.prod(shape) >= LARGE and not dtype.hasobject
    lending = current() if large else None
    return np.empty(shape, dtype) if lending is None else lending.empty(shape, dtype)
