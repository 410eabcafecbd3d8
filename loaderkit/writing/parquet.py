"""Write samples to Parquet files: one row for each sample, one schema for all shards."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import numpy as np

from loaderkit.datasets.arrow.parquet import ParquetDataset
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.system.checks import listed
from loaderkit.system.digests import digest
from loaderkit.system.types import Json
from loaderkit.writing.format import Sample, Settings, WriteError, Written, check_fields, to_array, to_fields

if TYPE_CHECKING:
    import pyarrow as pa

_WAY_OUT = "Give the types of all columns with ParquetFormat(schema=...)."


@dataclass(frozen=True, kw_only=True)
class ParquetFormat:
    """Write Parquet files with a column for each field.

    The schema comes from 64 samples spread over the dataset. Arrays (N, *F) of booleans and numbers become lists of
    fixed-size lists, and `lk.ParquetDataset` returns them as arrays of the same dtype. In a column, only the first axis
    may vary. Arrays of texts and times come back as lists. Numbers come back in the machine's byte order.

    Args:
        fields: The names of the fields, for samples that are tuples or single values.
        row_group_size: Rows in a row group. A reader decodes one row group at a time.
        compression: A codec, as pyarrow names it.
        schema: A pyarrow schema, instead of one from the samples. Fields that a sample lacks become null.

    Examples:
        >>> samples = [{"text": "a", "ids": [1, 2]}, {"text": "b", "ids": [3]}]
        >>> manifest = lk.write_shards(samples, "shards", format=lk.ParquetFormat(row_group_size=100))
        >>> lk.ParquetDataset("shards")[1]
        {'text': 'b', 'ids': array([3])}
    """

    name: ClassVar[str] = "parquet"
    suffix: ClassVar[str] = ".parquet"
    fields: Sequence[str] | None = None
    row_group_size: int = 1_000
    compression: str = "zstd"
    schema: Any = None

    def __post_init__(self) -> None:
        listed("ParquetFormat", "fields", self.fields)
        if self.row_group_size < 1:
            raise ValueError(f"ParquetFormat: row_group_size is {self.row_group_size}, wanted at least 1.")

    def settings(self) -> Settings:
        return {
            "fields": None if self.fields is None else list(self.fields),
            "row_group_size": self.row_group_size,
            "compression": self.compression,
            "schema": None if self.schema is None else digest(self.schema.serialize().to_pybytes()),
        }

    def learn(self, samples: Sequence[Sample]) -> Json:
        pa = _pyarrow()
        schema = self.schema
        if schema is None:
            rows = [to_fields(sample, self.fields, index) for index, sample in samples]
            names = list(rows[0])
            for (index, _), row in zip(samples, rows, strict=True):
                check_fields(row, names, index, _WAY_OUT)
            if not names:
                raise WriteError(f"sample {samples[0][0]}: has no fields, wanted at least one.")
            indices = [index for index, _ in samples]
            schema = pa.schema([(name, _type_of(name, _values(name, rows, indices), indices)) for name in names])
        return base64.b64encode(schema.serialize().to_pybytes()).decode()

    def write(self, file: BinaryIO, samples: Iterable[Sample], learned: Any) -> Written:
        pa = _pyarrow()
        import pyarrow.parquet as pq

        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(learned)))
        sizes: list[int] = []
        with pq.ParquetWriter(file, schema, compression=self.compression) as writer:
            rows = iter(samples)
            while group := list(islice(rows, self.row_group_size)):
                writer.write_table(self._table(group, schema), row_group_size=len(group))
                sizes.append(len(group))
        return Written(counts={"samples": sum(sizes)}, offsets=np.cumsum(sizes, dtype=np.int64))

    def index(self, shard: Path, written: Written) -> ShardIndex:
        found = shard.stat()
        return ShardIndex(
            kind=ParquetDataset.kind,
            count=written.counts["samples"],
            size_bytes=found.st_size,
            changed_ns=found.st_mtime_ns,
            offsets=written.offsets,
        )

    def _table(self, group: list[Sample], schema: "pa.Schema") -> "pa.Table":
        pa = _pyarrow()
        indices = [index for index, _ in group]
        rows = [to_fields(sample, self.fields, index) for index, sample in group]
        for index, row in zip(indices, rows, strict=True):
            wanted = schema.names if self.schema is None else [name for name in schema.names if name in row]
            check_fields(row, wanted, index, _WAY_OUT)
        columns = []
        for field in schema:
            values = _values(field.name, rows, indices)
            strict = self.schema is None
            try:
                columns.append(_column(values, field.type, strict))
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                for index, value in zip(indices, values, strict=True):  # find the sample
                    try:
                        _column([value], field.type, strict)
                    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                        raise WriteError(
                            f"sample {index}, field {field.name!r}: {error}; wanted {field.type}. {_WAY_OUT}"
                        ) from error
                raise
        return pa.Table.from_arrays(columns, schema=schema)


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(
            "Parquet shards need pyarrow. Install it: pip install '.[arrow]' in a checkout of loaderkit."
        ) from error
    return pa


def _values(name: str, rows: list[dict[str, object]], indices: list[int]) -> list[object]:
    values = []
    for index, row in zip(indices, rows, strict=True):
        try:
            value = to_array(row.get(name))
            # Arrow takes no 0-dimensional arrays, and a label is often one.
            values.append(value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value)
        except (ValueError, TypeError, RuntimeError) as error:
            raise WriteError(f"sample {index}, field {name!r}: {error}") from error
    return values


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "biuf"


def _type_of(name: str, values: list[Any], indices: list[int]) -> "pa.DataType":
    """Return the Arrow type of a column."""
    pa = _pyarrow()
    if _is_array(values[0]):
        first = values[0]
        for index, value in zip(indices, values, strict=True):
            found = (value.dtype, value.shape[1:]) if _is_array(value) else type(value).__name__
            if found != (first.dtype, first.shape[1:]) or 0 in value.shape[1:]:
                raise WriteError(
                    f"sample {index}, field {name!r}: {found}, wanted {(first.dtype, first.shape[1:])} as in sample "
                    f"{indices[0]}. A column has one dtype, and one size above 0 for each axis but the first."
                )
        kind = pa.from_numpy_dtype(first.dtype.newbyteorder("="))
        for size in reversed(first.shape[1:]):
            kind = pa.list_(kind, size)
        return pa.list_(kind)
    try:
        return pa.array(values).type
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        for index, value in zip(indices, values, strict=True):
            try:
                pa.array([values[0], value])
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                raise WriteError(f"sample {index}, field {name!r}: {error}. {_WAY_OUT}") from error
        raise WriteError(f"field {name!r}: {error}. {_WAY_OUT}") from error


def _column(values: list[Any], kind: "pa.DataType", strict: bool) -> "pa.Array":
    pa = _pyarrow()
    shape, element = [], kind.value_type if pa.types.is_list(kind) else kind
    while element is not kind and pa.types.is_fixed_size_list(element):
        shape.append(element.list_size)
        element = element.value_type
    if element is not kind and all(map(_is_array, values)):
        for value in values:
            if list(value.shape[1:]) != shape or pa.from_numpy_dtype(value.dtype.newbyteorder("=")) != element:
                raise ValueError(f"{value.dtype} of shape {value.shape}")
        flat = pa.array(np.concatenate([value.ravel() for value in values]).astype(values[0].dtype.newbyteorder("=")))
        for size in reversed(shape):
            flat = pa.FixedSizeListArray.from_arrays(flat, size)
        return pa.ListArray.from_arrays(np.cumsum([0, *map(len, values)]).astype(np.int32), flat)
    for value in values:
        _refuse_loss(value, kind, strict)
    return pa.array(values, type=kind)


def _refuse_loss(value: object, kind: "pa.DataType", strict: bool) -> None:
    """Raise a ValueError for a value that Arrow would change silently, such as a fraction in an integer column."""
    pa = _pyarrow()
    if isinstance(value, datetime):
        zoned = getattr(kind, "tz", None) is not None
        if pa.types.is_date(kind) or (strict and zoned != (value.tzinfo is not None)):
            raise ValueError(f"the time {value.isoformat()}")
    elif strict and (
        (isinstance(value, str) and kind == pa.binary())
        or (isinstance(value, bytes) and kind == pa.string())
        or (isinstance(value, bool | np.bool_) and kind != pa.bool_())
    ):
        raise ValueError(f"{type(value).__name__} {value!r:.60}")
    elif isinstance(value, float | np.floating):
        whole = pa.types.is_integer(kind) and not float(value).is_integer()
        bits = 8 * np.asarray(value).dtype.itemsize
        narrow = strict and pa.types.is_floating(kind) and bits > kind.bit_width
        if whole or narrow:
            raise ValueError(f"the number {value!r}")
    elif isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and pa.types.is_integer(getattr(kind, "value_type", kind)):
            raise ValueError(f"{value.dtype} of shape {value.shape}")
    elif isinstance(value, dict) and pa.types.is_struct(kind):
        names = {field.name for field in kind}
        if not value.keys() <= names or (strict and value.keys() != names):
            raise ValueError(f"a dict with {sorted(map(str, value))}, wanted {sorted(names)}")
        for field in kind:
            _refuse_loss(value.get(field.name), field.type, strict)
    elif isinstance(value, list | tuple) and hasattr(kind, "value_type"):
        for inner in value:
            _refuse_loss(inner, kind.value_type, strict)
