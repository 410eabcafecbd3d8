"""Gather batches from the columns of decoded Arrow tables, with one copy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from loaderkit.datasets.ragged import Ragged, Spans, join_parts
from loaderkit.system.arrays import Int64Array
from loaderkit.system.arrow_values import is_null, number_type, tensor_type, to_filled
from loaderkit.system.types import Array, DType

if TYPE_CHECKING:
    import pyarrow as pa


class Layout(NamedTuple):
    """The form that a column has in a batch.

    Args:
        kind: "numbers" (B, *shape), "lists" (a Ragged) or "objects" (a list).
        dtype: Dtype of the numbers, also of those in lists; None for objects.
        shape: Shape of one row, for "numbers".
    """

    kind: str
    dtype: DType | None = None
    shape: tuple[int, ...] = ()


def layout_of(kind: "pa.DataType") -> Layout | None:
    """Return the form that the default collate gives a column of this Arrow type; None if it depends on the values."""
    import pyarrow.types as kinds

    if (tensor := tensor_type(kind)) is not None:
        return Layout("numbers", tensor.dtype, tensor.shape)
    if (kinds.is_list(kind) or kinds.is_large_list(kind)) and (dtype := number_type(kind.value_type)) is not None:
        return Layout("lists", dtype)
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    texts = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)
    return Layout("objects") if any(check(kind) for check in texts) else None


class Column:
    """A column of a decoded row group, from its pyarrow array."""

    def __init__(self, array: "pa.Array") -> None:
        self.layout = layout_of(array.type)
        self._array = array
        # (N,) whether each row is null or contains a null; None if no row does.
        self._nulls: npt.NDArray[np.bool_] | None = None
        if self.layout is None or self.layout.dtype is None:
            return
        if self.layout.kind == "lists":
            self._nulls = is_null(array) if array.null_count else None
            flat = self._flatten(array, array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
            self.spans = Spans(flat, self._ends, "the column")
        else:
            rows, self._nulls = to_filled(array)
            self._rows = np.ascontiguousarray(rows)  # else each gather would first copy the whole column

    def _flatten(self, array: "pa.Array", lengths: Int64Array) -> Array:
        flat, holes = to_filled(array.flatten())
        self._ends = np.cumsum(lengths, dtype=np.int64)
        if holes is not None:
            before = np.concatenate([[0], np.cumsum(holes)])
            inside = before[self._ends] > before[self._ends - lengths]
            self._nulls = inside if self._nulls is None else inside | self._nulls
        return flat

    def check(self, name: str, rows: Int64Array) -> None:
        """Raise a ValueError if one of the rows (B,) is null or contains a null."""
        if self._nulls is not None and self._nulls[rows].any():
            raise ValueError(
                f"column {name!r} has a null among the rows of a batch, which a tensor cannot hold. Leave the column out "
                "(columns=...), or replace nulls in a transform."
            )

    def take(self, rows: Int64Array) -> Array:
        """Return the numbers (B, *) of the given rows (B,)."""
        return np.take(self._rows, rows, axis=0)

    def objects(self, rows: Int64Array) -> list[object]:
        """Return the values of the given rows (B,) as Python objects."""
        found: list[object] = self._array.take(rows).to_pylist()
        return found


# A column, positions (P,) in the batch, and the column's rows (P,) for these positions.
Part = tuple[Column, Int64Array, Int64Array]


def make_batch(name: str, layout: Layout, parts: Sequence[Part], size: int) -> Tensor | Ragged | list[object]:
    """Gather a batch of one column from its parts.

    `layout` is the column's form in the first shard, and `size` is the number of rows in the batch. If parts have
    integers of several widths, or floats of several widths, the batch has the widest dtype.

    Raises:
        ValueError: If parts differ in form otherwise, or a row is null. Texts and bytes may be null in all rows of the
            batch.
    """
    if any(column.layout != layout for column, _, _ in parts):
        layout = _joint_layout(name, layout, parts)
    if layout.dtype is None:
        return _objects(name, parts, size)
    for column, _, rows in parts:
        column.check(name, rows)
    if layout.kind == "lists":
        return join_parts([(column.spans, positions, rows) for column, positions, rows in parts], size, layout.dtype)
    if len(parts) == 1:
        return torch.from_numpy(parts[0][0].take(parts[0][2]))
    batch = np.empty((size, *layout.shape), dtype=layout.dtype)
    for column, positions, rows in parts:
        batch[positions] = column.take(rows)
    return torch.from_numpy(batch)


def _joint_layout(name: str, layout: Layout, parts: Sequence[Part]) -> Layout:
    """Return the form of a batch whose parts differ in form: the widest dtype of their numbers.

    Raises:
        ValueError: If a part is not a number for each row, or the numbers are of several kinds, such as int and float.
    """
    found = [column.layout for column, _, _ in parts]
    numbers = [one.dtype for one in found if one is not None and one.dtype is not None and one[::2] == ("numbers", ())]
    if len(numbers) == len(found) and (wider := wider_number(*numbers)) is not None:
        return Layout("numbers", wider)
    other = next(one for one in found if one != layout)
    raise ValueError(f"column {name!r} gives {other} here and {layout} in the first shard.")


def wider_number(*dtypes: DType) -> DType | None:
    """Return the dtype of a batch with numbers of several dtypes; None if they are of several kinds, such as int and float."""
    wider = np.result_type(*dtypes)
    return wider if all(_family(dtype) == _family(wider) for dtype in dtypes) else None


def _family(dtype: DType) -> str:
    return dtype.kind.replace("u", "i")


def _objects(name: str, parts: Sequence[Part], size: int) -> list[object]:
    objects: list[object] = [None] * size
    for column, positions, rows in parts:
        for place, value in zip(positions.tolist(), column.objects(rows), strict=True):
            objects[place] = value
    if any(value is None for value in objects) and not all(value is None for value in objects):
        raise ValueError(f"column {name!r} has nulls and values in one batch. Replace nulls in a transform.")
    return objects
