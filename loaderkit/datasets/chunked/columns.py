"""Read rows of arrays that are stored in chunks. A chunk is decoded once for all its rows that are read together."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.system.arrays import Int64Array, native
from loaderkit.system.types import Array, DType

CACHE_BYTES = 1 << 28  # of decoded chunks, for each thread
_BLOCK_BYTES = 1 << 16  # an array without chunks is read in blocks of about this size
_SHARD = 64  # least rows of a shard of an order: smaller shards make the order slow, and save no reads of chunks
_SINGLE = ""  # name of the column if a sample is not a dict, but the row of one array


@dataclass(frozen=True, slots=True)
class Column:
    """The description of an array (N, *) whose rows are values of samples.

    Args:
        name: The array's name in a sample; empty if its rows are the samples.
        dtype: The array's dtype in native byte order; object for texts and bytes.
        shape: Shape of a row.
        step: Number of rows in a chunk.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    step: int

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def empty(self, size: int) -> Any:
        """Return an empty batch for `size` rows: an array (B, *) for numbers, a list for other values."""
        return [None] * size if self.dtype.hasobject else np.empty((size, *self.shape), self.dtype)


def put(column: Any, places: Int64Array, values: Any) -> None:
    """Write values (P, *) into the positions `places` (P,) of a batch column, which is an array or a list."""
    if isinstance(column, np.ndarray):
        column[places] = values
    else:
        for place, value in zip(places.tolist(), values, strict=True):
            column[place] = value


def make_column(where: str, name: str, dtype: DType, shape: Sequence[int], chunk: int | None) -> Column:
    """Describe an array as a column; raise a ShardError if it has no axes, or values other than numbers, texts, bytes.

    Args:
        where: File or store, for errors.
        name: The array's name.
        dtype: The array's dtype as stored; object for texts and bytes of any length.
        shape: The array's shape, with the axis of rows.
        chunk: Number of rows in a chunk; None if the array has no chunks.
    """
    if not len(shape):
        raise ShardError(f"{where}: {name!r} is a single value, wanted an array of rows. Name the others: columns=.")
    if dtype.kind not in "biufcOSUT":
        raise ShardError(f"{where}: {name!r} holds {dtype}, wanted numbers, texts or bytes. Name the others: columns=.")
    kind = np.dtype(object) if dtype.kind in "OSUT" else dtype.newbyteorder("=")
    row_bytes = math.prod(shape[1:]) * max(1, dtype.itemsize)
    step = max(1, _BLOCK_BYTES // max(1, row_bytes)) if chunk is None else chunk
    return Column(name, kind, tuple(map(int, shape[1:])), int(min(step, max(1, shape[0]))))


def one_length(where: str, lengths: Mapping[str, int]) -> int:
    """Return the length that all columns have; raise a ShardError if there are no columns, or their lengths differ."""
    if not lengths:
        raise ShardError(
            f"{where}: has no arrays, wanted at least one. Name those of its groups: columns=['group/name']."
        )
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} has {length:,}" for name, length in lengths.items())
        raise ShardError(
            f"{where}: {found} rows; wanted columns of one length. Name those of one length: columns=[...]."
        )
    return next(iter(lengths.values()))


def shard_rows(columns: Iterable[Column], size: int) -> Int64Array:
    """Return the number of rows in each shard (S,) of an order.

    Shards are whole chunks of the column whose rows have the most bytes.
    """
    step = max(((one.row_bytes, one.step) for one in columns), default=(0, 1))[1]
    step *= -(-_SHARD // step)
    return np.diff(np.append(np.arange(0, size, step), size))


class Blocks:
    """A cache of the chunks that a thread used last, of at most `most_bytes` bytes, or of one larger chunk."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[object, ...], Array] = OrderedDict()

    def get(self, key: tuple[object, ...], read: Callable[[], Array]) -> Array:
        found = self._kept.pop(key, None)
        if found is None:
            found = read()
            self._bytes += found.nbytes
        self._kept[key] = found
        while self._bytes > self.most_bytes and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return found

    def drop(self, owner: object) -> None:
        """Forget the chunks whose keys have `owner` as their first element."""
        for key in [key for key in self._kept if key[0] == owner]:
            self._bytes -= self._kept.pop(key).nbytes


class OpenArrays:
    """Open arrays (N, *) by name, as one thread reads them.

    Args:
        where: File or store, for errors.
        arrays: The arrays by name; `array[start:stop]` gives rows.
        columns: The descriptions of the arrays.
        blocks: The thread's cache of decoded chunks.
        close: Called by `close()`, to close the file.
    """

    def __init__(
        self,
        where: str,
        arrays: Mapping[str, Any],
        columns: Sequence[Column],
        blocks: Blocks,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.where, self.columns = where, columns
        self._arrays, self._blocks, self._close = dict(arrays), blocks, close

    def close(self) -> None:
        self._blocks.drop(id(self))
        self._arrays.clear()
        self._close()

    def read(self, rows: Int64Array) -> list[object]:
        """Return the samples at `rows` (B,)."""
        return as_samples(self.gather(rows), len(rows))

    def gather(self, rows: Int64Array) -> dict[str, object]:
        """Return each column at `rows` (B,): an array (B, *) of numbers, or a list of B other values."""
        return {one.name: self._gather(one, rows) for one in self.columns}

    def _gather(self, column: Column, rows: Int64Array) -> object:
        out = np.empty((len(rows), *column.shape), column.dtype)
        order = np.argsort(rows, kind="stable")
        blocks = rows[order] // column.step
        found, starts = np.unique(blocks, return_index=True)
        for number, places in zip(found.tolist(), np.split(order, starts[1:]), strict=False):
            start = number * column.step
            if column.step * column.row_bytes <= self._blocks.most_bytes:
                out[places] = self._block(column, start)[rows[places] - start]
            else:  # the chunk is too large for the cache: read only these rows
                wanted, inverse = np.unique(rows[places], return_inverse=True)
                out[places] = self._decode(column, wanted)[inverse]
        return out.tolist() if column.dtype.hasobject else out

    def _block(self, column: Column, start: int) -> Array:
        rows = slice(start, start + column.step)
        return self._blocks.get((id(self), column.name, start), lambda: self._decode(column, rows))

    def _decode(self, column: Column, rows: slice | Int64Array) -> Array:
        array = self._arrays[column.name]
        first, last = (rows.start, rows.stop - 1) if isinstance(rows, slice) else (rows[0], rows[-1])
        with errors_named(f"{self.where}: rows {first:,} to {last:,} of {column.name!r}"):
            found = np.asarray(array[rows] if isinstance(rows, slice) else getattr(array, "oindex", array)[rows])
        return found.astype(object) if found.dtype.kind in "SUT" else native(found)


def as_samples(columns: dict[str, Any], size: int) -> list[object]:
    """Return gathered columns as `size` samples: dicts, or the rows themselves if there is one unnamed column."""
    if _SINGLE in columns:
        return list(columns[_SINGLE])
    values = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values] if columns else [{} for _ in range(size)]


def as_columns(columns: dict[str, Any]) -> object:
    """Return gathered columns in the structure of a sample: a dict, or the column itself if it has no name."""
    return columns.get(_SINGLE, columns)


@contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Raise a ShardError in place of the errors that h5py and zarr raise for damaged data."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ShardError(f"{what} can't be read: {error}") from error
