"""Tables on disk: Parquet, Arrow IPC and Feather, read a row group at a time."""

import io
import mmap
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, ClassVar

import numpy as np

from loaderkit.datasets.columns import Column, layout_of, make_batch
from loaderkit.datasets.index import ShardError, ShardIndex
from loaderkit.datasets.sharded import ShardedDataset, by_number
from loaderkit.datasets.storage import Storage
from loaderkit.datasets.urls import Urls, is_remote
from loaderkit.seeding import Int64Array

_PARQUET, _ARROW, _STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"


class ParquetDataset(ShardedDataset):
    """The rows of Parquet files (also Arrow IPC files and streams, and Feather) as dicts.

    A list of numbers without nulls comes as a numpy array, a copy; everything else as
    pyarrow's `to_pylist` gives it. A row group is read and decoded once for as
    long as it is among the last `cached_groups`: shuffle with `lk.ShardOrder`, and
    write row groups that fit into memory many times.

    Default batches are gathered column by column where the types allow it (numbers,
    text, bytes, lists of one length), which is many times faster than by rows.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        columns: Which to read; all of the first shard's by default.
        transform: From a row to a sample; its random numbers are the sample's own.
        ragged: In a default batch a list of numbers is a `Ragged`, whatever the lists'
            lengths; otherwise they have to be equal, and are stacked.
        index_dir: Where index files lie; None means beside local shards, and
            in ~/.cache/loaderkit/index for remote ones.
        max_open: Files kept open in a process.
        storage: How remote files are reached, and where copies of them are kept.
        cached_groups: Decoded row groups kept in a process, of all files together. A ShardOrder
            reads lanes x (1 + window / rows in a group) of them in turn.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a file is cut or broken, or lacks a column.
    """

    kind = "parquet-1"
    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".pq", ".arrow", ".feather", ".ipc")

    def __init__(
        self,
        urls: Urls,
        columns: Sequence[str] | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        ragged: bool = False,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 128,
        storage: Storage | None = None,
        cached_groups: int = 64,
    ) -> None:
        if cached_groups < 1 or isinstance(columns, str):
            raise ValueError(
                f"ParquetDataset: cached_groups is {cached_groups}, columns {columns!r}; wanted at least 1, and a list."
            )
        super().__init__(urls, transform=transform, index_dir=index_dir, max_open=max_open, storage=storage)
        self._groups = _Groups(cached_groups)
        first = _Table(self.shards[0], self.open_file(self.shards[0]), None, _Groups(1))
        self.columns = first.columns if columns is None else list(columns)
        self._layouts = {name: layout_of(first.type_of(name)) for name in self.columns if name in first.columns}
        first.close()
        kinds = {layout.kind if layout else "" for layout in self._layouts.values()}
        if transform is not None or "" in kinds or ("lists" in kinds and not ragged):
            self.read_batch = None  # type: ignore[assignment, method-assign]  # the feed looks for it

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        table = _Table(shard, self.open_file(shard), None, _Groups(1))
        sizes = table.group_sizes()
        table.close()
        return sum(sizes), np.cumsum(sizes, dtype=np.int64)

    def open(self, shard: str, index: ShardIndex) -> "_Table":
        table = _Table(shard, self.open_file(shard), self.columns, self._groups)
        if index.offsets is None or np.cumsum(table.group_sizes()).tolist() != index.offsets.tolist():
            table.close()
            raise ShardError(f"{shard}: its row groups changed while it was in use: make the dataset anew.")
        return table

    def read(self, handle: "_Table", rows: Int64Array, index: ShardIndex) -> list[Any]:
        samples: list[Any] = [None] * len(rows)
        for group, places, inside in _by_group(rows, index):
            for place, sample in zip(places.tolist(), handle.read(group, inside), strict=True):
                samples[place] = sample
        return samples

    def read_batch(self, indices: Int64Array) -> dict[str, Any]:
        """Return a batch of each column: a tensor (B, *), a list for text and bytes, or a Ragged.

        Raises:
            ShardError: If a shard is broken, or its column has another type.
            ValueError: If a row is null.
        """
        parts: list[tuple[dict[str, Column], Int64Array, Int64Array]] = []
        for part, places, rows in self.by_shard(indices):
            handle = self.handle(part)
            for group, inner, inside in _by_group(rows, self._indexes[part]):
                parts.append((handle.columns_of(group), places[inner], inside))
        return {
            name: make_batch(
                name, layout, [(columns[name], places, rows) for columns, places, rows in parts], len(indices)
            )
            for name, layout in self._layouts.items()
            if layout is not None
        }

    def fingerprint(self) -> str:
        """Name the shards, their sizes and the columns."""
        return f"{self.columns} {super().fingerprint()}"

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_groups": _Groups(self._groups.most)}


def _by_group(rows: Int64Array, index: ShardIndex) -> Iterator[tuple[int, Int64Array, Int64Array]]:
    """Sort a shard's rows (B,) by row group: yield its number, places in the rows, and rows in the group."""
    ends = np.empty(0, dtype=np.int64) if index.offsets is None else index.offsets
    first, last = np.searchsorted(ends, [rows.min(), rows.max()], side="right").tolist()
    if first == last:
        yield first, np.arange(len(rows)), rows - (int(ends[first - 1]) if first else 0)
        return
    for group, places in by_number(np.searchsorted(ends, rows, side="right"), first, last):
        yield group, places, rows[places] - (int(ends[group - 1]) if group else 0)


class _Groups:
    """The row groups decoded last, of all files: table, and its columns once they were asked for."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[tuple[int, int], Any] = OrderedDict()

    def get(self, file: "_Table", group: int) -> Any:
        key = (id(file), group)
        found = self._kept.pop(key, None)
        if found is None:
            while len(self._kept) >= self.most:
                self._kept.popitem(last=False)
            found = file.decode(group)
        self._kept[key] = found
        return found

    def drop(self, file: "_Table") -> None:
        for key in [key for key in self._kept if key[0] == id(file)]:
            del self._kept[key]


class _Group:
    """A decoded row group."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self._columns: dict[str, Column] | None = None

    def columns(self) -> dict[str, Column]:
        if self._columns is None:
            self._columns = {
                name: Column(_whole(column))
                for name, column in zip(self.table.column_names, self.table.columns, strict=True)
            }
        return self._columns


class _Table:
    """An open file, and its row groups (Arrow's record batches)."""

    def __init__(self, shard: str, file: BinaryIO, columns: list[str] | None, groups: _Groups) -> None:
        self.shard = shard
        self._groups = groups
        self._source: Any = None
        self._file: Any = None
        try:
            with _errors_named(shard, "not a whole Parquet or Arrow file"):
                self._source, self._file = _open(shard, file)
                found = list(self._schema().names)
            self.columns = found if columns is None else columns
            missing = [name for name in self.columns if name not in found]
            if missing or len(set(found)) < len(found):
                raise ShardError(f"{shard}: has the columns {found}, wanted {self.columns}, each once.")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._groups.drop(self)
        self._file = None
        if self._source is not None:
            self._source.close()

    def group_sizes(self) -> list[int]:
        if hasattr(self._file, "metadata") and hasattr(self._file, "num_row_groups"):
            return [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        with _errors_named(self.shard, "not a whole Arrow file"):
            return [self._file.get_batch(batch).num_rows for batch in range(self._file.num_record_batches)]

    def type_of(self, column: str) -> Any:
        return self._schema().field(column).type

    def read(self, group: int, rows: Int64Array) -> list[dict[str, Any]]:
        table = self._groups.get(self, group).table
        with _errors_named(self.shard, f"row group {group} has broken values"):
            values = [_to_python(column) for column in table.take(rows).columns]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*values, strict=True)] or [{} for _ in rows]

    def columns_of(self, group: int) -> dict[str, Column]:
        found: _Group = self._groups.get(self, group)
        with _errors_named(self.shard, f"row group {group} has broken values"):
            return found.columns()

    def decode(self, group: int) -> _Group:
        with _errors_named(self.shard, f"row group {group} can't be read"):
            return _Group(self._decode(group))

    def _schema(self) -> Any:
        return self._file.schema_arrow if hasattr(self._file, "schema_arrow") else self._file.schema

    def _decode(self, group: int) -> Any:
        import pyarrow as pa

        if hasattr(self._file, "read_row_group"):
            table = self._file.read_row_group(group, columns=self.columns, use_threads=False)
        else:
            table = pa.Table.from_batches([self._file.get_batch(group)])
        table = table.select(self.columns).combine_chunks()
        table.validate(full=True)  # else a damaged offset is read as an address
        return table


class _Batches:
    """An Arrow stream, read whole: it has no footer that says where its batches lie."""

    def __init__(self, reader: Any) -> None:
        self.schema = reader.schema
        self._batches = list(reader)
        self.num_record_batches = len(self._batches)

    def get_batch(self, number: int) -> Any:
        return self._batches[number]


def _open(shard: str, file: BinaryIO) -> tuple[Any, Any]:
    """Return what reads the bytes, and the table in them."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError(f"{shard!r} needs pyarrow: pip install 'loaderkit[arrow]'.") from error

    start = file.read(8)
    parquet = start.startswith(_PARQUET)
    if not parquet and not start.startswith((_ARROW, _STREAM)):
        file.close()
        raise ShardError(f"{shard}: begins with {start!r}, wanted a Parquet file, an Arrow file or an Arrow stream.")
    source = _source(shard, file, mapped=not parquet)
    try:
        # Threads of its own, in every worker, would only stand in each other's way.
        if parquet:
            return source, pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)
        options = pa.ipc.IpcReadOptions(use_threads=False)
        if start.startswith(_ARROW):
            return source, pa.ipc.open_file(source, options=options)
        return source, _Batches(pa.ipc.open_stream(source, options=options))
    except BaseException:
        source.close()
        raise


def _source(shard: str, file: BinaryIO, *, mapped: bool) -> Any:
    """Return what pyarrow reads a file from; Arrow's own are laid out as its memory is, and are mapped."""
    import pyarrow as pa

    file.seek(0)
    if is_remote(shard) and not isinstance(getattr(file, "raw", None), io.FileIO):
        return file  # read by ranges
    with file:
        if is_remote(shard):  # its copy may be gone from the cache, but is still open; and it never changes
            return pa.BufferReader(pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        return pa.memory_map(shard) if mapped else pa.OSFile(shard)


@contextmanager
def _errors_named(shard: str, what: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except ShardError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise ShardError(f"{shard}: {what}: {error}") from error


def _whole(column: Any) -> Any:
    """Return a chunked column as one array."""
    import pyarrow as pa

    return pa.chunked_array(column.chunks, type=column.type).combine_chunks()


def _to_python(column: Any) -> list[Any]:
    """Return a column's values; a list of numbers, or of fixed-size lists of them, without nulls is an array."""
    import pyarrow.types as kinds

    array = _whole(column)
    kind = array.type
    of_lists = kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)
    element, shape = kind.value_type if of_lists else kind, []
    while of_lists and kinds.is_fixed_size_list(element) and element.list_size:
        shape.append(element.list_size)
        element = element.value_type
    if not of_lists or not (kinds.is_integer(element) or kinds.is_floating(element)):
        values: list[Any] = array.to_pylist()
        return values
    flat, nulls = array.flatten(), array.null_count
    for _ in shape:
        nulls += flat.null_count
        flat = flat.flatten()
    if nulls or flat.null_count:
        values = array.to_pylist()
        if shape:
            return values
        return [None if value is None else value if None in value else _as_array(value, kind) for value in values]
    numbers = np.array(flat).reshape(-1, *shape)
    if kinds.is_fixed_size_list(kind):
        return list(numbers.reshape(len(array), kind.list_size, *shape))
    ends = np.cumsum(array.value_lengths()).tolist()
    return [numbers[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _as_array(value: list[Any], kind: Any) -> Any:
    return np.array(value, dtype=kind.value_type.to_pandas_dtype())
