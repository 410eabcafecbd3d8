"""Tables and columns of other libraries, known by their types without importing these libraries."""

from typing import Any

import numpy as np

_Names = frozenset[tuple[str, str]]  # a library and a class of it

_FRAMES: _Names = frozenset(
    {
        ("cudf", "DataFrame"),
        ("dask", "DataFrame"),
        ("modin", "DataFrame"),
        ("pandas", "DataFrame"),
        ("polars", "DataFrame"),
        ("polars", "LazyFrame"),
        ("pyarrow", "Dataset"),
        ("pyarrow", "RecordBatch"),
        ("pyarrow", "Table"),
        ("xarray", "Dataset"),
    }
)
_PANDAS: _Names = frozenset({("pandas", "Series"), ("pandas", "Index"), ("pandas", "ExtensionArray")})
_POLARS: _Names = frozenset({("polars", "Series")})
_ARROW: _Names = frozenset({("pyarrow", "Array"), ("pyarrow", "ChunkedArray")})
_XARRAY: _Names = frozenset({("xarray", "DataArray")})


def is_frame(value: Any) -> bool:
    """Return whether a value is a table, which looks like a dataset but is indexed by column names."""
    return _is_one_of(value, _FRAMES)


def by_position(value: Any) -> Any:
    """Return a column of another library as an array (N, *), whose rows are found by position; other values as they are.

    pandas and xarray find rows by label, and the scalars of Arrow are no numbers. The array shares the column's memory if
    the column is plain numbers without missing values. Missing values stay what they are: `pandas.NA` or None in an array of objects.
    """
    if type(value).__module__.partition(".")[0] in ("builtins", "loaderkit", "numpy", "torch"):
        return value
    if _is_one_of(value, _PANDAS):
        return _of_pandas(value)
    if _is_one_of(value, _XARRAY):
        return value.to_numpy()
    if _is_one_of(value, _POLARS):
        if value.null_count() == 0 and (value.dtype.is_numeric() or str(value.dtype) == "Boolean"):
            return value.to_numpy()
        value = value.to_arrow()
    return _of_arrow(value) if _is_one_of(value, _ARROW) else value


def _is_one_of(value: Any, names: _Names) -> bool:
    """Return whether the type of a value, or a base of it, is one of these classes."""
    return any((base.__module__.partition(".")[0], base.__name__) in names for base in type(value).__mro__)


def _of_pandas(column: Any) -> Any:
    wanted = getattr(column.dtype, "numpy_dtype", None)  # of its nullable types, and of those of Arrow
    if wanted is None:
        return np.asarray(column)
    is_whole = np.dtype(wanted).kind in "biuf" and not column.isna().any()
    return column.to_numpy(dtype=wanted if is_whole else object)  # by default some missing values become NaN


def _of_arrow(column: Any) -> Any:
    from pyarrow import types  # loaded already

    kind = column.type
    if column.null_count == 0 and (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return column.to_numpy() if hasattr(column, "chunks") else column.to_numpy(zero_copy_only=False)
    return np.fromiter(column.to_pylist(), dtype=object, count=len(column))
