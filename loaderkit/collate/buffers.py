"""Memory of large batches that are gone, for the next ones.

The C library gives the memory of large blocks back to the system, and a page that comes from there anew takes longer than it takes
to fill it: a batch of 38 MB 11 ms.
"""

import contextlib
import math
import mmap
import threading
from collections.abc import Sequence
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

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array that holds anything."""
        size = np.dtype(dtype).itemsize * math.prod(shape)
        _here.lent += size
        self._most = max(self._most, _here.lent)
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
        # Not by numpy, which asks for huge pages: the system may take 50 ms to find them, where others take 10.
        return np.ndarray.__new__(_Memory, (size,), np.uint8, mmap.mmap(-1, size, mmap.MAP_PRIVATE))

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

    def __del__(self) -> None:
        if self.pool is not None:
            self.pool.take_back(self.memory)


class _Here(threading.local):
    pool: BufferPool | None = None
    lent = 0  # bytes, for this batch
    filled: dict[int, Tensor] | None = None


_here = _Here()


class Lending:
    """A context in which this thread makes a batch, and takes what is large in it from a pool."""

    # Not a generator, which takes three times as long: one is entered for each batch.

    __slots__ = ("_before", "_pool")

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool

    def __enter__(self) -> None:
        self._before = _here.pool, _here.lent, _here.filled
        _here.pool, _here.lent, _here.filled = self._pool, 0, None

    def __exit__(self, *_: object) -> None:
        _here.pool, _here.lent, _here.filled = self._before


def current_pool() -> BufferPool | None:
    """Return the pool of the batch that this thread makes."""
    return _here.pool


def empty_array(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array of numbers for a batch to be written into, which holds anything."""
    pool, dtype = _here.pool, np.dtype(dtype)
    if pool is None or dtype.hasobject or dtype.itemsize * math.prod(shape) < LARGE:
        return np.empty(shape, dtype)
    return pool.empty(shape, dtype)


def note_filled(whole: Tensor) -> None:
    """Take note that the samples of this batch are written into the rows of a tensor as they are read."""
    _here.filled = (_here.filled or {}) | {whole.data_ptr(): whole}


def filled_from(address: int) -> Tensor | None:
    """Return the tensor of which that was noted, by the address of its first row."""
    return None if _here.filled is None else _here.filled.get(address)
