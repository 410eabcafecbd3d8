"""Tables and columns of other libraries, known by their types without importing these libraries.

Attributes do not count: a class that answers every name is no table.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderkit.system.arrow_values import number_type, to_samples

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_Names = frozenset[tuple[str, str]]  # a library and a class of it

_WAYS_OUT = {  # a table's columns by name, whose values an ArrayDataset takes
    ("cudf", "DataFrame"): "dict(frame.to_pandas().items())",
    ("dask", "DataFrame"): "dict(frame.compute().items())",
    ("modin", "DataFrame"): "dict(frame.items())",
    ("pandas", "DataFrame"): "dict(frame.items())",
    ("polars", "DataFrame"): "frame.to_dict()",
    ("polars", "LazyFrame"): "frame.collect().to_dict()",
    ("pyarrow", "Dataset"): "dict(zip(dataset.schema.names, dataset.to_table().columns))",
    ("pyarrow", "RecordBatch"): "dict(zip(batch.schema.names, batch.columns))",
    ("pyarrow", "Table"): "dict(zip(table.column_names, table.columns))",
    ("xarray", "Dataset"): "dict(dataset.data_vars)",
}
_FRAMES: _Names = frozenset(_WAYS_OUT)
_PANDAS: _Names = frozenset({("pandas", "Series"), ("pandas", "Index"), ("pandas", "ExtensionArray")})
_OF_NUMPY: _Names = frozenset(
    {("pandas", "NumpyExtensionArray"), ("pandas", "PandasArray")}
)  # the name before pandas 2.1
_SPARSE: _Names = frozenset({("pandas", "SparseArray")})
_MULTI: _Names = frozenset({("pandas", "MultiIndex")})
_POLARS: _Names = frozenset({("polars", "Series")})
_ARROW: _Names = frozenset({("pyarrow", "Array"), ("pyarrow", "ChunkedArray")})
_ZARR: _Names = frozenset({("zarr", "Array")})
_XARRAY: _Names = frozenset({("xarray", "DataArray")})


def is_frame(value: object) -> bool:
    """Return whether a value is a table, which looks like a dataset but is indexed by column names."""
    return _is_one_of(value, _FRAMES)


def frame_way_out(value: object) -> str:
    """Return what to write instead of a table, as the end of a message; an empty string for other values."""
    found = next((_WAYS_OUT[name] for name in _names_of(value) if name in _WAYS_OUT), None)
    return "" if found is None else f"For its rows use loaderkit.ArrayDataset({found})."


def columns_of(value: Any) -> dict[Any, Any] | None:
    """Return the columns of a mapping or of a table in memory by name; None for other values.

    The columns are the library's own objects. A table that is not in memory yet, such as a LazyFrame, gives None.
    """
    if _is_one_of(value, frozenset({("pyarrow", "Table"), ("pyarrow", "RecordBatch")})):
        return dict(zip(value.schema.names, value.columns, strict=True))
    if _is_one_of(value, frozenset({("polars", "DataFrame")})):
        return dict(value.to_dict(as_series=True))
    if _is_one_of(value, frozenset({("xarray", "Dataset")})):
        return dict(value.data_vars)
    if isinstance(value, Mapping) or _is_one_of(value, frozenset({("pandas", "DataFrame"), ("modin", "DataFrame")})):
        return dict(value.items())
    return None


def is_arrow(value: object) -> bool:
    """Return whether a value is an array or a chunked array of Arrow."""
    return _is_one_of(value, _ARROW)


def by_position(value: Any) -> Any:
    """Return a column of another library as something whose rows are found by position; other values as they are.

    pandas and xarray find rows by label, and the scalars of Arrow are no numbers. A column of numbers without missing values is
    an array, which shares the column's memory where the library allows it. Other columns are read row by row: their
    missing values stay what they are, such as `pandas.NA` or None.
    """
    if type(value).__module__.partition(".")[0] in ("builtins", "loaderkit", "numpy", "torch"):
        return value
    if _is_one_of(value, _PANDAS):
        return _of_pandas(value)
    if _is_one_of(value, _XARRAY) and value.ndim:
        return Rows(value, _row_of_xarray)
    if _is_one_of(value, _ZARR) and value.ndim:
        return Rows(value, _row_of_zarr, value.shape[0])  # the type has no length
    if _is_one_of(value, _POLARS):
        return value.to_numpy() if _is_plain_polars(value) else Rows(value, _row_of_polars)
    return _of_arrow(value) if is_arrow(value) else value


class Rows(Sequence[object]):
    """A column that is read row by row, by position."""

    draws_nothing = True

    def __init__(self, column: Any, read: Callable[[Any, int], object], length: int | None = None) -> None:
        self._column = column
        self._read = read
        self._length = len(column) if length is None else length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        row = operator.index(index)
        if not -self._length <= row < self._length:
            raise IndexError(f"{type(self._column).__name__}: row {row} in a column of {self._length:,} rows.")
        return self._read(self._column, row % self._length)


def _is_one_of(value: object, names: _Names) -> bool:
    """Return whether the type of a value, or a base of it, is one of these classes."""
    return any(name in names for name in _names_of(value))


def _names_of(value: object) -> list[tuple[str, str]]:
    return [(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__]


def _of_pandas(column: "pd.Series") -> object:
    if _is_one_of(column, _MULTI):
        return Rows(column, operator.getitem)
    column = getattr(column, "array", column)
    if _is_one_of(column, _SPARSE):
        return np.asarray(column, dtype=column.dtype.subtype)
    kind = column.dtype
    wanted = getattr(kind, "numpy_dtype", None)  # numpy's dtypes, pandas' nullable ones and Arrow's have it
    if wanted is None or np.dtype(wanted).kind not in "biufcO":  # pandas returns times as its own types
        return Rows(column, operator.getitem)
    if hasattr(kind, "pyarrow_dtype"):
        return _of_arrow(column.__arrow_array__())
    if not _is_one_of(column, _OF_NUMPY) and column.isna().any():
        return Rows(column, operator.getitem)
    return column.to_numpy(dtype=wanted)


def _is_plain_polars(series: Any) -> bool:
    """Return whether a Series holds numbers without missing values."""
    kind = series.dtype
    return (kind.is_integer() or kind.is_float() or str(kind) == "Boolean") and not series.null_count()


def _row_of_polars(series: Any, row: int) -> object:
    found = series[row]
    if series.null_count() and found is not None and not _is_one_of(found, _POLARS):
        kind = series.dtype
        return series[row : row + 1].to_numpy()[0] if kind.is_integer() or kind.is_float() else found
    return _unfolded(found)


def _unfolded(value: Any) -> Any:
    """Return lists of numbers as arrays if their rows have one length, and other values of polars as they are."""
    if not _is_one_of(value, _POLARS):
        return value
    if _is_plain_polars(value):
        return value.to_numpy(writable=True)
    parts = [_unfolded(part) for part in value]
    shapes = {part.shape if isinstance(part, np.ndarray) else None for part in parts}
    return parts if None in shapes or len(shapes) != 1 else np.stack(parts)


def _of_arrow(column: "pa.Array | pa.ChunkedArray") -> object:
    if number_type(column.type) is None or column.null_count:
        return Rows(column, _row_of_arrow)
    return column.to_numpy() if hasattr(column, "chunks") else column.to_numpy(zero_copy_only=False)


def _row_of_arrow(column: "pa.Array | pa.ChunkedArray", row: int) -> object:
    found = column.slice(row, 1)
    return to_samples(found.combine_chunks() if hasattr(found, "chunks") else found)[0]


def _row_of_xarray(array: Any, row: int) -> object:
    return array[row].to_numpy()[()]


def _row_of_zarr(array: Any, row: int) -> object:
    return np.asarray(array[row])[()]
