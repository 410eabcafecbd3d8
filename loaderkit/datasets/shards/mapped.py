"""Shards that are memory-mapped arrays. A batch takes one gather from each shard that it touches."""

import math
import os
import tokenize
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import BinaryIO, ClassVar

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.memory.array import take
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.npyheader import NpyHeader, read_npy_header
from loaderkit.datasets.shards.open_shards import Opened
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.files.urls import is_remote
from loaderkit.system.arrays import Int64Array, native
from loaderkit.system.batch_memory import empty_array
from loaderkit.system.types import Array, DType

Layout = tuple[DType, tuple[int, ...]]  # dtype and shape of a row


class MappedDataset(ShardedDataset[Opened]):
    """Base of datasets whose rows come from memory-mapped arrays.

    A subclass defines `gather`, which copies rows from what `open` returns. If all rows have one dtype and shape, it
    sets `row_layout`, and the dataset has `read_batch`.
    """

    keeps_index: ClassVar[bool] = False
    maps: ClassVar[bool] = True
    row_layout: Layout | None

    @abstractmethod
    def gather(self, handle: Opened, rows: Int64Array) -> Array:
        """Return a copy of rows (B, *) in native byte order."""

    def read(self, handle: Opened, rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        return list(self.gather(handle, rows))

    def _read_batch(self, indices: Int64Array) -> Tensor:
        if self.row_layout is None:
            raise TypeError(f"{type(self).__name__}: the rows have several layouts, wanted one to make a batch.")
        dtype, shape = self.row_layout
        batch: Array | None = None
        for part, places, rows in self.to_read(indices):
            found = self.gather(self.handle(part), rows)
            if len(rows) == len(indices):
                return torch.from_numpy(found)
            batch = empty_array((len(indices), *shape), dtype) if batch is None else batch
            batch[places] = found
        return torch.from_numpy(np.empty((0, *shape), dtype) if batch is None else batch)

    @property
    def read_batch(self) -> Callable[[Int64Array], Tensor]:
        """A function from indices (B,) to a batch (B, *). The attribute is missing if rows differ in dtype or shape."""
        if self.row_layout is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'read_batch'")
        return self._read_batch


def npy_layout(shard: str, file: BinaryIO) -> NpyHeader:
    """Return the header of a `.npy` file; raise a ShardError if the file is cut, or does not hold rows of numbers."""
    found = file.seek(0, os.SEEK_END)
    try:
        dtype, shape, _, start = header = read_npy_header(file)
    except (ValueError, TypeError, KeyError, SyntaxError, tokenize.TokenError) as error:
        raise ShardError(f"{shard}: not a whole .npy file: {error}.") from error
    if dtype.kind not in "biufc":
        raise ShardError(f"{shard}: holds {dtype}, wanted numbers. For text and objects use lk.RecordDataset.")
    if not shape or min(shape) < 0:
        raise ShardError(f"{shard}: has the shape {shape}, wanted at least one axis, of rows.")
    wanted = start + math.prod(shape) * dtype.itemsize
    if found < wanted:
        raise ShardError(f"{shard}: cut at byte {found:,}, its header says {wanted:,} bytes (shape {shape}, {dtype}).")
    return header


def map_npy(shard: str, file: BinaryIO) -> Array:
    """Return a `.npy` file as a read-only mapped array."""
    dtype, shape, fortran, start = npy_layout(shard, file)
    if 0 in shape:
        return np.empty(shape, dtype)
    mapped = np.memmap(file, dtype=dtype, mode="r", offset=start, shape=shape, order="F" if fortran else "C")
    return np.asarray(mapped)  # indexing a np.memmap is several times slower


def open_to_map(dataset: ShardedDataset, shard: str) -> BinaryIO:
    """Open a shard to read its header; raise a ShardError if it is remote and there is no cache for a copy to map."""
    if is_remote(shard) and dataset.storage.cache_dir is None:
        raise ShardError(
            f"{shard}: a remote file, wanted a local one to map into memory. Copy it to a disk, or use Storage(cache_dir=...)."
        )
    return dataset.files.open_head(shard)


def count_numbers(shard: str, file: BinaryIO, dtype: DType, what: str, start: int = 0) -> int:
    """Return how many numbers are in a file from byte `start` on; `what` names them in errors."""
    size = file.seek(0, os.SEEK_END) - start
    if size % dtype.itemsize:
        raise ShardError(f"{shard}: cut, its {size:,} bytes are not a whole number of {what}.")
    return size // dtype.itemsize


def take_native(array: Array, rows: Int64Array) -> Array:
    """Return a copy of rows (B, *) in native byte order."""
    # `take` is faster, but first copies an array that is not contiguous.
    return native(take(array, rows) if array.flags.c_contiguous else array[rows])
