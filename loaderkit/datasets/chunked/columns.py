"""Rows of arrays that are stored in chunks: a chunk is decoded once for all its rows that are read together."""

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
_BLOCK_BYTES = 1 << 16  # of an array without chunks that are read at a time
_SHARD = 64  # rows at least: an order of smaller shards takes long and reads no fewer chunks
_SINGLE = ""  # the name of the only column of samples that are no dicts


@dataclass(frozen=True, slots=True)
class Column:
    """An array (N, *) as a column.

    Args:
        name: Its name in a sample; empty if samples are its rows themselves.
        dtype: Its type; of texts and bytes, object.
        shape: Shape of a row.
        step: Rows of a chunk.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    step: int

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def empty(self, size: int) -> Any:
        """Return room for rows (B, *): an array of numbers, a list of others."""
        return [None] * size if self.dtype.hasobject else np.empty((size, *self.shape), self.dtype)


def put(column: Any, places: Int64Array, values: Any) -> None:
    """Write values (B,) to some places of a column."""
    if isinstance(column, np.ndarray):
        column[places] = values
    else:
        for place, value in zip(places.tolist(), values, strict=True):
            column[place] = value


def make_column(where: str, name: str, dtype: DType, shape: Sequence[int], chunk: int | None) -> Column:
    """Return a column; raise a ShardError if the array has no rows or holds neither numbers nor texts.

    Args:
        where: File or store, for errors.
        name: The array's name.
        dtype: Its type; object for texts and bytes of any length.
        shape: The whole shape.
        chunk: Rows of a chunk; None without chunks.
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
    """Return the length that all columns have; raise a ShardError if there are none, or they differ."""
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
    """Return the rows of an order's shards (S,): whole chunks of the column whose rows are the largest."""
    step = max(((one.row_bytes, one.step) for one in columns), default=(0, 1))[1]
    step *= -(-_SHARD // step)
    return np.diff(np.append(np.arange(0, size, step), size))


class Blocks:
    """The chunks of rows that a thread decoded last, up to a number of bytes."""

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
        """Forget the chunks whose keys begin with `owner`."""
        for key in [key for key in self._kept if key[0] == owner]:
            self._bytes -= self._kept.pop(key).nbytes


class OpenArrays:
    """Open arrays (N, *) by name, as one thread reads them.

    Args:
        where: File or store, for errors.
        arrays: The arrays by name; `array[start:stop]` gives rows.
        columns: What they are.
        blocks: Where the thread keeps decoded chunks.
        close: Called at the end.
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
        """Return samples (B,)."""
        return as_samples(self.gather(rows), len(rows))

    def gather(self, rows: Int64Array) -> dict[str, object]:
        """Return the rows (B, *) of each column: arrays of numbers, lists of other values."""
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
            else:  # the library decodes the chunk and keeps these rows alone
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
    """Return gathered columns as B samples: dicts, or rows if there is one column without a name."""
    if _SINGLE in columns:
        return list(columns[_SINGLE])
    values = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values] if columns else [{} for _ in range(size)]


def as_columns(columns: dict[str, Any]) -> object:
    """Return gathered columns in the structure of a sample."""
    return columns.get(_SINGLE, columns)


@contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Raise a ShardError in place of what the library raises for damaged data."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ShardError(f"{what} can't be read: {error}") from error
