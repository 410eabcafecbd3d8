"""Shards that are arrays, memory-mapped: a batch is one gather from each shard that it touches."""

import math
import os
import tokenize
from abc import abstractmethod
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.memory.array import take
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.npyheader import NpyHeader, read_npy_header
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.system.arrays import Int64Array
from loaderkit.system.batch_memory import empty_array

Array = npt.NDArray[Any]
Layout = tuple[np.dtype[Any], tuple[int, ...]]  # of a row: dtype, shape


class MappedDataset(ShardedDataset):
    """Shards whose rows are gathered, by `gather`, from what `open` maps.

    `read_batch` is there where all rows have one layout. Mappings need no open file: many may be kept.
    """

    keeps_index: ClassVar[bool] = False
    row_layout: Layout | None  # None where rows differ

    @abstractmethod
    def gather(self, handle: Any, rows: Int64Array) -> Array:
        """Return a copy of rows (B, *) in the machine's byte order."""

    def read(self, handle: Any, rows: Int64Array, index: ShardIndex) -> list[Any]:
        return list(self.gather(handle, rows))

    def _read_batch(self, indices: Int64Array) -> Tensor:
        alone = self.one_shard(indices)  # as most batches of a ShardOrder with large shards
        if alone is not None:
            return torch.from_numpy(self.gather(self.handle(alone[0]), alone[1]))
        layout = self.row_layout
        if layout is None:
            raise TypeError(f"{type(self).__name__}: rows of several layouts make no batch at once.")
        batch = empty_array((len(indices), *layout[1]), layout[0])
        for part, places, rows in self.by_shard(indices):
            batch[places] = self.gather(self.handle(part), rows)
        return torch.from_numpy(batch)

    def __getattr__(self, name: str) -> Any:
        # Only where a batch at once is what the samples would make.
        ready = name == "read_batch" and "_opened" in self.__dict__
        if ready and self.row_layout is not None:
            return self._read_batch
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def npy_layout(shard: str, file: BinaryIO) -> NpyHeader:
    """Read the header of a `.npy` file, and check that the file is as long as it says.

    Raises:
        ShardError: If it is none, is cut, or holds no rows of numbers.
    """
    size_bytes = local_size(shard, file)
    try:
        dtype, shape, _, start = header = read_npy_header(file)
    except (ValueError, TypeError, KeyError, SyntaxError, tokenize.TokenError) as error:
        raise ShardError(f"{shard}: not a whole .npy file: {error}.") from error
    if dtype.kind not in "biufc":
        raise ShardError(f"{shard}: holds {dtype}, wanted numbers. For text and objects use lk.RecordDataset.")
    if not shape or min(shape) < 0:
        raise ShardError(f"{shard}: has the shape {shape}, wanted at least one axis, of rows.")
    wanted, found = start + math.prod(shape) * dtype.itemsize, size_bytes
    if found < wanted:
        raise ShardError(f"{shard}: cut at byte {found:,}, its header says {wanted:,} bytes (shape {shape}, {dtype}).")
    return header


def map_npy(shard: str, file: BinaryIO) -> Array:
    """Map a `.npy` file that `npy_layout` accepts; read-only."""
    dtype, shape, fortran, start = npy_layout(shard, file)
    if 0 in shape:
        return np.empty(shape, dtype)
    mapped = np.memmap(file, dtype=dtype, mode="r", offset=start, shape=shape, order="F" if fortran else "C")
    return np.asarray(mapped)  # indexing a memmap itself is several times slower


def local_size(shard: str, file: BinaryIO) -> int:
    """Return the size of a file that is to be mapped.

    Raises:
        ShardError: If it is remote, and read without a cache.
    """
    try:
        return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ShardError(
            f"{shard}: to map a shard into memory it has to be a local file. Copy it to a disk, or give its Storage a cache_dir."
        ) from error


def take_native(array: Array, rows: Int64Array) -> Array:
    """Gather rows (B, *) in the machine's byte order."""
    # np.take is the faster one, but first copies the whole of an array that is not contiguous.
    found = take(array, rows) if array.flags.c_contiguous else array[rows]
    return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))
