"""The values of Arrow arrays as samples: numbers and arrays keep the column's dtype and shape.

Without that, a column of float32 would give Python's floats, which become float64 in a batch.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loaderkit.system.types import Array, DType

if TYPE_CHECKING:
    import pyarrow as pa


class Tensors(NamedTuple):
    """The rows of an Arrow type of numbers, or of arrays of numbers of one shape.

    Args:
        dtype: The dtype of the numbers.
        sizes: The shape of a row in memory; () for numbers.
        order: The axes of a row, as numbers of axes in memory, if they are in another order than there.
    """

    dtype: DType
    sizes: tuple[int, ...]
    order: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return self.sizes if self.order is None else tuple(self.sizes[axis] for axis in self.order)

    def rows(self, numbers: Array, count: int) -> Array:
        """Return all numbers of `count` rows, in the order of memory, as an array (count, *shape): a view."""
        rows = numbers.reshape(count, *self.sizes)
        return rows if self.order is None else rows.transpose(0, *(axis + 1 for axis in self.order))


@lru_cache(maxsize=1024)
def number_type(kind: "pa.DataType") -> DType | None:
    """Return the dtype of an Arrow type of booleans, integers or floats; None for others."""
    import pyarrow.types as kinds

    is_number = kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind)
    return np.dtype(kind.to_pandas_dtype()) if is_number else None


@lru_cache(maxsize=1024)
def tensor_type(kind: "pa.DataType") -> Tensors | None:
    """Return the dtype and shape of the rows of an Arrow type, if they have one shape; None for others."""
    import pyarrow as pa
    import pyarrow.types as kinds

    order = None
    if isinstance(kind, pa.FixedShapeTensorType):
        dtype, sizes = number_type(kind.value_type), tuple(kind.shape)
        order = None if kind.permutation is None else tuple(kind.permutation)
    else:
        sizes = ()
        while kinds.is_fixed_size_list(kind):
            sizes, kind = (*sizes, kind.list_size), kind.value_type
        dtype = number_type(kind)
    return None if dtype is None else Tensors(dtype, sizes, order)


def to_samples(array: "pa.Array") -> list[object]:
    """Return the values (N,) of a pyarrow array.

    Booleans, int64, float64, and values that are not numbers (such as texts) are as `to_pylist` returns them. Other numbers are numpy
    scalars. Lists of numbers are arrays (n,), and lists of such lists are arrays (n, m, ...), or lists of arrays if the inner lengths
    differ. A null is None, and a list with a null in it stays a list.
    """
    if _is_plain(array.type):
        plain: list[object] = array.to_pylist()
        return plain
    values = _values(array)
    # A copy: Arrow's own memory cannot be written, and a row that is kept would keep all of it.
    return list(values.copy() if isinstance(values, np.ndarray) and values.ndim > 1 else values)


def to_numbers(array: "pa.Array") -> Array:
    """Return a pyarrow array without nulls as a numpy array (N, *shape), a view where Arrow allows it.

    Its type is one that `tensor_type` knows.
    """
    form = _tensors(array)
    flat = _storage(array)
    for _ in form.sizes if flat is array else form.sizes[:1]:  # a fixed shape tensor is stored as one list
        flat = _inner(flat)
    numbers: Array = flat.to_numpy(zero_copy_only=False)
    return form.rows(numbers, len(array)) if form.sizes else numbers


def to_filled(array: "pa.Array") -> tuple[Array, Array | None]:
    """Return numbers (N, *shape) with 0 for nulls, and a mask (N,) of the rows with a null. The mask is None without nulls.

    The array is of a type that `tensor_type` knows.
    """
    if not has_nulls(array):
        return to_numbers(array), None
    form, storage = _tensors(array), _storage(array)
    if storage is not array:
        flat, mask = to_filled(storage)
        return form.rows(flat, len(array)), mask
    mask = is_null(array)
    if not form.sizes:
        return to_numbers(array.fill_null(form.dtype.type(0).item())), mask
    flat, inside = to_filled(_inner(array))
    rows = np.zeros((len(array), *form.sizes), dtype=form.dtype)
    rows[~mask] = flat.reshape(-1, *form.sizes)
    if inside is not None:
        mask[~mask] = inside.reshape(-1, form.sizes[0]).any(axis=1)
    return rows, mask


def has_nulls(array: "pa.Array") -> bool:
    """Return whether an array of a type that `tensor_type` knows has a null, at any depth."""
    flat = _storage(array)
    for _ in _tensors(flat).sizes:
        if flat.null_count:
            return True
        flat = _inner(flat)
    return bool(flat.null_count)


def is_null(array: "pa.Array") -> npt.NDArray[np.bool_]:
    """Return a mask (N,) that is True at the nulls of a pyarrow array. It can be written."""
    return np.array(array.is_null())


def _tensors(array: "pa.Array") -> Tensors:
    form = tensor_type(array.type)
    if form is None:
        raise TypeError(f"arrow: found {array.type}, wanted numbers or arrays of one shape.")
    return form


def _inner(array: "pa.Array") -> "pa.Array":
    """Return the values of lists of one size, without those of null lists."""
    if array.null_count:
        return array.flatten()
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)  # takes a fifth of the time of `flatten`


def _storage(array: "pa.Array") -> "pa.Array":
    return getattr(array, "storage", array)  # of an extension type


@lru_cache(maxsize=1024)
def _is_plain(kind: "pa.DataType") -> bool:
    """Return whether `to_pylist` keeps the dtypes and shapes of an Arrow type."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if (dtype := number_type(kind)) is not None:
        return dtype in (bool, np.int64, np.float64)
    if kinds.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):  # only tensors, and arrays of other libraries, are lists
        return not _is_list(kind.storage_type) or _is_plain(kind.storage_type)
    if kinds.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    return not _is_list(kind) or (number_type(kind.value_type) is None and _is_plain(kind.value_type))


def _is_list(kind: "pa.DataType") -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _values(array: "pa.Array") -> Sequence[object] | Array:
    """Return the N values of a pyarrow array: a numpy array (N, *shape) if all have one shape and none is null, else a list."""
    kind = array.type
    form = tensor_type(kind)
    if form is not None and not has_nulls(array):
        return to_numbers(array)
    if form is not None and not form.sizes:
        numbers, _ = to_filled(array)
        return _with_none(list(numbers), array)
    if _is_plain(kind):
        values: list[object] = array.to_pylist()
        return values
    if hasattr(array, "dictionary"):
        return _values(array.dictionary_decode())
    if hasattr(array, "storage"):
        values = list(_values(array.storage))
        if form is None:
            return values
        return [value if value is None else form.rows(np.asarray([value]), 1)[0] for value in values]
    return _lists(array) if _is_list(kind) else _structs(array)


def _structs(array: "pa.Array") -> list[object]:
    names = [field.name for field in array.type]
    rows = zip(*map(to_samples, array.flatten()), strict=True)
    return _with_none([dict(zip(names, row, strict=True)) for row in rows], array)


def _lists(array: "pa.Array") -> list[object]:
    import pyarrow.types as kinds

    kind = array.type
    if kinds.is_fixed_size_list(kind):
        ends = np.arange(array.offset, array.offset + len(array) + 1) * kind.list_size
    else:
        ends = array.offsets.to_numpy()
    flat = array.values.slice(ends[0], ends[-1] - ends[0])
    dtype = _leaf(flat.type)
    values = _values(flat) if dtype is not None else to_samples(flat)
    inner: Any = values.copy() if isinstance(values, np.ndarray) else values
    places = (ends - ends[0]).tolist()
    rows = [inner[start:end] for start, end in pairwise(places)]
    if dtype is not None and not isinstance(inner, np.ndarray):
        rows = [_joined(row, kind, dtype) for row in rows]
    return _with_none(rows, array)


def _with_none(rows: list[object], array: "pa.Array") -> list[object]:
    """Return rows with None where an array has a null."""
    if not array.null_count:
        return rows
    return [None if missing else row for row, missing in zip(rows, is_null(array), strict=True)]


def _joined(row: list[Any], kind: "pa.DataType", dtype: DType) -> object:
    """Return a row of numbers or arrays as one array if they have one shape and none is missing."""
    if any(value is None or isinstance(value, list) for value in row):
        return row
    shapes = {np.shape(value) for value in row}
    if len(shapes) > 1:
        return row
    return np.array(row, dtype).reshape(len(row), *(shapes.pop() if shapes else _empty_shape(kind.value_type)))


def _empty_shape(kind: "pa.DataType") -> tuple[int, ...]:
    """Return the shape that an entry of an empty list would have, with 0 for lists of any length."""
    return (getattr(kind, "list_size", 0), *_empty_shape(kind.value_type)) if _is_list(kind) else ()


@lru_cache(maxsize=1024)
def _leaf(kind: "pa.DataType") -> DType | None:
    """Return the dtype of an Arrow type of numbers, or of nested lists of numbers; None for other types."""
    while _is_list(kind):
        kind = kind.value_type
    return number_type(kind)
