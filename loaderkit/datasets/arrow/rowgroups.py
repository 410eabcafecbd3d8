"""Read files of row groups, which pyarrow decodes one at a time. Each thread keeps the groups that it decoded last."""

import io
import mmap
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

from loaderkit.datasets.arrow.columns import Column
from loaderkit.datasets.arrow.variant import decode_variant, variant_columns
from loaderkit.datasets.errors import ShardError
from loaderkit.files.foreign_formats import HEAD, what_head
from loaderkit.files.urls import is_remote, stat
from loaderkit.system.arrays import Int64Array
from loaderkit.system.arrow_values import to_samples

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET, _ENCRYPTED, _ARROW, _STREAM = b"PAR1", b"PARE", b"ARROW1", b"\xff\xff\xff\xff"
Decryption = Callable[[], object]  # returns pyarrow's FileDecryptionProperties


class Groups:
    """A cache of up to `most` row groups: those that a thread used last, of all its files together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[tuple[int, int], _Group] = OrderedDict()

    def get(self, file: "GroupedTable", group: int) -> "_Group":
        key = (id(file), group)
        found = self._kept.pop(key, None)
        if found is None:
            while len(self._kept) >= self.most:
                self._kept.popitem(last=False)
            found = file.decode(group)
        self._kept[key] = found
        return found

    def drop(self, file: "GroupedTable") -> None:
        for key in [key for key in self._kept if key[0] == id(file)]:
            del self._kept[key]


class _Group:
    """A decoded row group."""

    def __init__(self, table: "pa.Table") -> None:
        self.table = table

    @cached_property
    def columns(self) -> dict[str, Column]:
        pairs = zip(self.table.column_names, self.table.columns, strict=True)
        return {name: Column(_whole(column)) for name, column in pairs}


class GroupedTable:
    """An open file, read by row group (in Arrow files: by record batch).

    `constants` are columns to add, with one value for all rows; a column in the file takes precedence.
    """

    def __init__(
        self,
        shard: str,
        file: BinaryIO,
        groups: Groups,
        constants: "Mapping[str, pa.Scalar] | None" = None,
        decryption: Decryption | None = None,
    ) -> None:
        self.shard = shard
        self._groups = groups
        self._source: Any = None
        self._file: Any = None
        try:
            with _errors_named(shard, "not a whole Parquet or Arrow file"):
                self._source, self._file = _open(shard, file, decryption)
                schema = self._file.schema_arrow if hasattr(self._file, "schema_arrow") else self._file.schema
                self._views = _plain_types(schema)
                self._variants = (
                    variant_columns(self._file.schema) if hasattr(self._file, "schema_arrow") else frozenset()
                )
                # One type for VARIANT columns: files may store (shred) their values in different types.
                for name, kind in (self._views | dict.fromkeys(self._variants, _any_value())).items():
                    place = schema.get_field_index(name)
                    schema = schema.set(place, schema.field(place).with_type(kind))
                self.schema = schema
                found = list(self.schema.names)
            # Only for columns that the file lacks.
            self.constants = {name: one for name, one in (constants or {}).items() if name not in found}
            for name, value in self.constants.items():
                self.schema = self.schema.append(_field(name, value))
            self.columns = [*found, *self.constants]
            if len(set(found)) < len(found):
                raise ShardError(f"{shard}: has the columns {found}, wanted each once.")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._groups.drop(self)
        self._file = None
        if self._source is not None:
            self._source.close()

    def choose(self, columns: list[str]) -> None:
        """Read only these columns from now on; raise a ShardError if the file lacks one."""
        if not set(columns) <= set(self.columns):
            raise ShardError(f"{self.shard}: has the columns {self.columns}, wanted {columns}.")
        self.columns = columns

    def group_sizes(self) -> list[int]:
        if hasattr(self._file, "metadata") and hasattr(self._file, "num_row_groups"):
            return [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        with _errors_named(self.shard, "not a whole Arrow file"):
            return [self._file.get_batch(batch).num_rows for batch in range(self._file.num_record_batches)]

    def read(self, group: int, rows: Int64Array) -> list[dict[str, object]]:
        table = self._groups.get(self, group).table
        with _errors_named(self.shard, f"row group {group} has broken values"):
            taken = _take(table, rows)
            values = [self._samples(name, _whole(taken[name])) for name in self.columns]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*values, strict=True)] or [{} for _ in rows]

    def _samples(self, name: str, column: "pa.Array") -> list[object]:
        return list(map(decode_variant, column.to_pylist())) if name in self._variants else to_samples(column)

    def columns_of(self, group: int) -> dict[str, Column]:
        found: _Group = self._groups.get(self, group)
        with _errors_named(self.shard, f"row group {group} has broken values"):
            return found.columns

    def decode(self, group: int) -> _Group:
        import pyarrow as pa

        with _errors_named(self.shard, f"row group {group} can't be read"):
            if hasattr(self._file, "read_row_group"):
                own = [name for name in self.columns if name not in self.constants]
                table = self._file.read_row_group(group, columns=own, use_threads=False)
            else:
                table = pa.Table.from_batches([self._file.get_batch(group)])
            for name, kind in self._views.items():
                if name in table.column_names:
                    table = table.set_column(table.column_names.index(name), name, _cast(table[name], kind))
            for name, value in self.constants.items():
                table = table.append_column(_field(name, value), pa.repeat(value, table.num_rows))
            table = table.select(self.columns).combine_chunks()
            table.validate(full=True)  # Arrow does not check a file's offsets by itself
            return _Group(table)


def _plain_types(schema: "pa.Schema") -> "dict[str, pa.DataType]":
    """Return the plain type (string or binary) to cast each column of views to, by name: pyarrow can't gather views."""
    import pyarrow as pa
    from pyarrow.types import is_binary_view, is_string_view

    texts, content = (
        dict.fromkeys((name for name, kind in zip(schema.names, schema.types, strict=True) if is_view(kind)), plain)
        for is_view, plain in ((is_string_view, pa.string()), (is_binary_view, pa.binary()))
    )
    return texts | content


def _any_value() -> "pa.DataType":
    """Return the Arrow type that stands for a VARIANT column in schemas."""
    import pyarrow as pa

    return pa.struct([("metadata", pa.binary()), ("value", pa.binary())])


def _cast(column: "pa.ChunkedArray", kind: "pa.DataType") -> "pa.ChunkedArray":
    import pyarrow as pa

    try:
        return column.cast(kind)
    except pa.ArrowNotImplementedError:  # older versions of pyarrow
        return pa.chunked_array([pa.array(column.to_pylist(), kind)])


def _field(name: str, value: "pa.Scalar") -> "pa.Field":
    import pyarrow as pa

    return pa.field(name, value.type)


class _Batches:
    """An Arrow stream, read completely, as it has no footer with the positions of its batches."""

    def __init__(self, reader: "pa.RecordBatchReader") -> None:
        self.schema = reader.schema
        self._batches = list(reader)
        self.num_record_batches = len(self._batches)

    def get_batch(self, number: int) -> "pa.RecordBatch":
        return self._batches[number]


def _open(shard: str, file: BinaryIO, decryption: Decryption | None) -> tuple[object, object]:
    """Return the byte source and the table reader of a file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError(f"{shard!r} needs pyarrow: pip install '.[arrow]' in a checkout of loaderkit.") from error

    start = file.read(HEAD)
    parquet = start.startswith((_PARQUET, _ENCRYPTED))
    if start.startswith(_ENCRYPTED) and decryption is None:
        file.close()
        raise ShardError(
            f"{shard}: an encrypted Parquet file. Give decryption=, a function that returns pyarrow's FileDecryptionProperties."
        )
    if not parquet and not start.startswith((_ARROW, _STREAM)):
        file.close()
        what = what_head(start, stat(shard).size_bytes) if not is_remote(shard) else ""
        raise ShardError(
            f"{shard}: starts with {start[:8]!r}, wanted a Parquet file, an Arrow file or an Arrow stream.{what}"
        )
    source = _source(shard, file, mapped=not parquet)
    try:
        # Without pyarrow's threads: workers already run in parallel.
        if parquet:
            properties = None if decryption is None else decryption()
            settings = {"pre_buffer": False, "page_checksum_verification": True, "decryption_properties": properties}
            return source, pq.ParquetFile(source, **settings)
        options = pa.ipc.IpcReadOptions(use_threads=False)
        if start.startswith(_ARROW):
            return source, pa.ipc.open_file(source, options=options)
        return source, _Batches(pa.ipc.open_stream(source, options=options))
    except BaseException:
        source.close()
        raise


def _source(shard: str, file: BinaryIO, *, mapped: bool) -> Any:
    """Return pyarrow's source for a file. Arrow files are memory-mapped, as their data needs no decoding."""
    import pyarrow as pa

    file.seek(0)
    if is_remote(shard) and not isinstance(getattr(file, "raw", None), io.FileIO):
        return file  # reads become requests for byte ranges
    with file:
        if is_remote(shard):  # by descriptor, as the cache may have removed the copy's name; its content never changes
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


def _take(table: "pa.Table", rows: Int64Array) -> "pa.Table":
    import pyarrow as pa

    try:
        return table.take(rows)
    except pa.ArrowNotImplementedError:  # for example string views, which Polars writes
        return pa.concat_tables([table.slice(row, 1) for row in rows.tolist()])


def _whole(column: "pa.ChunkedArray") -> "pa.Array":
    """Return a chunked column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    import pyarrow as pa

    return pa.chunked_array(column.chunks, type=column.type).combine_chunks()
