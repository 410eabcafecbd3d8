"""Memory for batches: large ones reuse the memory of earlier batches, and torch's workers write into shared memory.

The C library returns large blocks to the system. To get their pages back takes longer than to fill them: 11 ms for a batch of
38 MB.
"""

import contextlib
import math
import mmap
import sys
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data as torch_data
from torch import Tensor
from torch.storage import UntypedStorage

from loaderkit.system.types import Array
from loaderkit.system.worker_info import in_worker_process

LARGE = 8 << 20  # bytes; the C library keeps smaller blocks itself
_SHARED = 1 << 17  # bytes; smaller tensors travel in the message itself, see `loaderkit.engine.torch`
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # for the dtypes that numpy lacks


class BufferPool:
    """Lends memory, and takes it back when the last array or tensor that uses it is gone.

    The pool keeps the memory of `batches` batches as large as its largest. Threads may share a pool. A forked process has
    its own copy, and a pickled pool is empty.
    """

    def __init__(self) -> None:
        self.batches = 1
        self._free: list[_Memory] = []  # most recently returned last
        self._most = 0  # bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that the pool keeps for the next batches."""
        return sum(map(len, self._free))

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike, batch_bytes: int) -> Array:
        """Return an array with arbitrary content. With it, its batch has taken `batch_bytes` bytes from the pool in all.

        Raises:
            MemoryError: If the system has no memory.
        """
        size = np.dtype(dtype).itemsize * math.prod(shape)
        self._most = max(self._most, batch_bytes)
        memory = self._find(size)
        lent = np.ndarray.__new__(_Lent, memory.shape, np.uint8, memory)
        lent.pool, lent.memory = self, memory
        return np.ndarray(shape, dtype, lent)

    def _find(self, size: int) -> "_Memory":
        for at in range(len(self._free) - 1, -1, -1):
            with contextlib.suppress(IndexError):  # another thread took it
                memory = self._free.pop(at)
                if size <= len(memory) <= 2 * size:
                    return memory
                self._free.insert(at, memory)
        try:
            # Not np.empty: numpy asks for huge pages, which the system may take 50 ms to find. Without them it takes 10 ms.
            mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE)
        except OSError as error:
            raise MemoryError(
                f"loader: the system cannot allocate {size:,} bytes for a batch: {error}. Reduce batch_size, or free memory."
            ) from error
        return np.ndarray.__new__(_Memory, (size,), np.uint8, mapped)

    def _take_back(self, memory: "_Memory") -> None:
        self._free.append(memory)
        while self.free_bytes > self.batches * self._most:
            with contextlib.suppress(IndexError):
                self._free.pop(0)

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


class _Memory(np.ndarray[tuple[int, ...], np.dtype[np.uint8]]):
    """The bytes that a pool owns. If they were a plain np.ndarray, views of a `_Lent` would refer to them, not to the `_Lent`."""


class _Lent(np.ndarray[tuple[int, ...], np.dtype[np.uint8]]):
    """What arrays over lent memory refer to: it returns the memory when it is freed."""

    pool: BufferPool | None = None
    memory: _Memory
    is_finalizing = staticmethod(sys.is_finalizing)  # this module's `sys` is gone when the interpreter ends

    def __del__(self) -> None:
        if self.pool is not None and not self.is_finalizing():
            self.pool._take_back(self.memory)


class BatchMemory:
    """The memory that one batch has borrowed from a pool. Inside the `with`, this thread makes that batch."""

    def __init__(self, pool: BufferPool) -> None:
        self.filled: dict[int, Tensor] = {}  # by address: tensors whose rows are already the batch's samples
        self._pool = pool
        self._bytes = 0

    def __enter__(self) -> None:
        self._before, _thread.batch = _thread.batch, self

    def __exit__(self, *error: object) -> None:
        _thread.batch = self._before

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """Return an array from the pool, with arbitrary content."""
        self._bytes += np.dtype(dtype).itemsize * math.prod(shape)
        return self._pool.empty(shape, dtype, self._bytes)


class _Thread(threading.local):
    batch: BatchMemory | None = None


_thread = _Thread()


def current() -> BatchMemory | None:
    """Return the memory of the batch that this thread makes; None outside a batch."""
    return _thread.batch


def empty_array(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Return an array with arbitrary content, to write a batch into. A large one comes from the current pool."""
    dtype = np.dtype(dtype)
    large = dtype.itemsize * math.prod(shape) >= LARGE and not dtype.hasobject
    batch = current() if large else None
    return np.empty(shape, dtype) if batch is None else batch.empty(shape, dtype)


def _is_shared(size_bytes: int) -> bool:
    """Return whether a tensor of this size is made in shared memory: large ones are, in a worker of torch."""
    info = torch_data.get_worker_info() if size_bytes > _SHARED else None
    return info is not None and in_worker_process() and not hasattr(info, "writes_into_slots")


def new_empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """Return a tensor with arbitrary content, with the dtype and device of `like`, to write a batch into."""
    size_bytes = math.prod(shape) * like.itemsize
    if like.device.type != "cpu" or not size_bytes:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if _is_shared(size_bytes):
        make: Callable[[int], UntypedStorage] = torch.UntypedStorage._new_shared  # as torch's default_collate does
        made: Tensor = torch.empty(0, dtype=like.dtype, device="cpu")
        return made.set_(make(size_bytes), 0, tuple(shape))  # type: ignore[call-overload,no-any-return]  # torch's stub lacks this overload
    # The memory of torch.empty goes back to the system each time. For 256 x 512 int64, in batches of several lengths, its
    # 40 page faults take four times as long as filling it.
    return torch.from_numpy(empty_array((size_bytes,), np.uint8)).view(like.dtype).view(tuple(shape))


@lru_cache(maxsize=64)
def bits_of(value: float, dtype: torch.dtype) -> object:
    """Return `value` as an element of `as_array(tensor)`, for a tensor of this dtype."""
    return as_array(torch.full((1,), value, dtype=dtype, device="cpu"))[0]


def as_array(tensor: Tensor) -> Array:
    """Return an array over a tensor's memory. If numpy lacks the dtype, it has integers with the same bits."""
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16
        return tensor.view(_BITS[tensor.itemsize]).numpy()
