"""The values of Arrow arrays as samples: numbers and arrays keep the column's dtype and shape.

Without that, a column of float32 would give Python's floats, which become float64 in a batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def is_number(kind: Any) -> bool:
    """Return whether an Arrow type is of booleans, integers or floats, as numpy has them."""
    import pyarrow.types as kinds

    return kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind)


def tensor_type(kind: Any) -> tuple[Any, tuple[int, ...]] | None:
    """Return the numbers' type and the shape of a row, for numbers and arrays of one shape; None for other types."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if isinstance(kind, pa.FixedShapeTensorType):
        shape = tuple(kind.shape)
        order = kind.permutation or range(len(shape))
        return (kind.value_type, tuple(shape[axis] for axis in order)) if is_number(kind.value_type) else None
    sizes = []
    while kinds.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
        kind = kind.value_type
    return (kind, tuple(sizes)) if is_number(kind) else None


def to_samples(array: Any) -> list[Any]:
    """Return the values (N,) of a pyarrow array.

    Booleans, int64, float64, texts and all that is no number are what `to_pylist` gives. Other numbers are numpy scalars. Lists of
    numbers are arrays (n,), and lists of such lists arrays (n, m, ...), or lists of arrays where the inner lengths differ. A null is
    None, and a list with a null in it stays a list.
    """
    if not _has_own_form(array.type):
        plain: list[Any] = array.to_pylist()
        return plain
    values = _values(array)
    # A copy: Arrow's own memory cannot be written, and a row that is kept would keep all of it.
    return list(values.copy() if isinstance(values, np.ndarray) else values)


def to_numbers(array: Any) -> Array:
    """Return an array without nulls of a type that `tensor_type` knows: (N, *shape), a view where Arrow allows it."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if isinstance(array, pa.ExtensionArray):
        return in_shape(to_numbers(array.storage), array.type)
    if kinds.is_fixed_size_list(array.type):
        inner = to_numbers(array.flatten())
        return inner.reshape(len(array), array.type.list_size, *inner.shape[1:])
    numbers: Array = array.to_numpy(zero_copy_only=False)
    return numbers


def in_shape(rows: Array, kind: Any) -> Array:
    """Return rows (N, size) of a fixed shape tensor's storage in its shape (N, *shape)."""
    rows = rows.reshape(len(rows), *kind.shape)
    return rows if kind.permutation is None else rows.transpose(0, *(axis + 1 for axis in kind.permutation))


def fill_nulls(array: Any) -> Any:
    """Return an array of numbers with 0 for nulls."""
    import pyarrow.types as kinds

    return array.fill_null(False if kinds.is_boolean(array.type) else 0)


def has_nulls(array: Any) -> bool:
    """Return whether an array of a type that `tensor_type` knows has a null, at any depth."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return bool(array.null_count) or (kinds.is_fixed_size_list(array.type) and has_nulls(array.flatten()))


def _has_own_form(kind: Any) -> bool:
    """Return whether `to_pylist` would lose the dtype or the shape of something in a type."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if is_number(kind):
        return not (kinds.is_boolean(kind) or kinds.is_int64(kind) or kinds.is_float64(kind))
    if kinds.is_dictionary(kind):
        return _has_own_form(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _is_unfolded(kind) and (tensor_type(kind) is not None or _has_own_form(kind.storage_type))
    if kinds.is_struct(kind):
        return any(_has_own_form(field.type) for field in kind)
    return _is_list(kind) and (is_number(kind.value_type) or _has_own_form(kind.value_type))


def _is_unfolded(kind: Any) -> bool:
    """Return whether an extension type's values are those of its storage: fixed shape tensors, and lists of other libraries."""
    return _is_list(kind.storage_type)


def _is_list(kind: Any) -> bool:
    import pyarrow.types as kinds

    return kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)


def _values(array: Any) -> Sequence[Any] | Array:
    """Return values (N,): one numpy array (N, *shape) if the type has one shape and nothing is null."""
    import pyarrow as pa
    import pyarrow.types as kinds

    kind = array.type
    if kinds.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if tensor_type(kind) is not None and not has_nulls(array):
        return to_numbers(array)
    if isinstance(array, pa.ExtensionArray) and _is_unfolded(kind):
        if isinstance(kind, pa.FixedShapeTensorType):
            return [value if value is None else in_shape(np.asarray([value]), kind)[0] for value in _values(array.storage)]
        return _values(array.storage)
    if is_number(kind):
        numbers = to_numbers(fill_nulls(array))
        return [number if valid else None for number, valid in zip(numbers, array.is_valid().to_pylist(), strict=True)]
    if not _has_own_form(kind):
        values: list[Any] = array.to_pylist()
        return values
    if kinds.is_struct(kind):
        return _structs(array)
    return _lists(array)


def _structs(array: Any) -> list[Any]:
    names = [field.name for field in array.type]
    columns = [to_samples(column) for column in array.flatten()]
    rows = zip(*columns, strict=True)
    valid = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]


def _lists(array: Any) -> list[Any]:
    import pyarrow.types as kinds

    valid = np.asarray(array.is_valid())
    if kinds.is_fixed_size_list(array.type):
        lengths = np.where(valid, array.type.list_size, 0)
    else:
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    flat = array.flatten()
    of_numbers = _leaf(flat.type) is not None
    inner = _values(flat) if of_numbers else to_samples(flat)
    inner = inner.copy() if isinstance(inner, np.ndarray) else inner
    ends = np.cumsum(lengths).tolist()
    rows = [inner[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    if of_numbers and not isinstance(inner, np.ndarray):
        rows = [_joined(row, array.type) for row in rows]
    return [row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]


def _joined(row: list[Any], kind: Any) -> Any:
    """Return a row of numbers or arrays as one array if they have one shape and none is missing."""
    import pyarrow.types as kinds

    if any(value is None or isinstance(value, list) for value in row):
        return row
    if row and len({np.shape(value) for value in row}) > 1:
        return row
    shape = []
    while not row and _is_list(kind := kind.value_type):
        shape.append(kind.list_size if kinds.is_fixed_size_list(kind) else 0)
    return np.array(row, _leaf(kind)).reshape(len(row), *(shape or np.shape(row[0] if row else 0)))


def _leaf(kind: Any) -> np.dtype[Any] | None:
    """Return the dtype of nested lists of numbers; None for lists of other values."""
    while _is_list(kind):
        kind = kind.value_type
    return np.dtype(kind.to_pandas_dtype()) if is_number(kind) else None
