"""Columns of decoded Arrow tables, gathered into batches with one copy."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from loaderkit.datasets.ragged import Spans, join_parts
from loaderkit.system.arrays import Int64Array


class Layout(NamedTuple):
    """The form of a column in a batch.

    Args:
        kind: "numbers" (B, *shape), "lists" (a Ragged) or "objects" (a list).
        dtype: Dtype of the batch; None for objects.
        shape: Shape of a row.
    """

    kind: str
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()


def layout_of(kind: Any) -> Layout | None:
    """Return the form that the default collate gives a column of this Arrow type; None if the values decide it."""
    import pyarrow.types as kinds

    if kinds.is_boolean(kind):
        return Layout("numbers", np.dtype(bool))
    if kinds.is_integer(kind) and not kinds.is_uint64(kind):
        return Layout("numbers", np.dtype(np.int64))
    if kinds.is_floating(kind):
        return Layout("numbers", np.dtype(np.float64))
    of_lists = kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)
    if of_lists and (kinds.is_integer(kind.value_type) or kinds.is_floating(kind.value_type)):
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        return Layout("numbers", dtype, (kind.list_size,)) if kinds.is_fixed_size_list(kind) else Layout("lists", dtype)
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    texts = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)
    return Layout("objects") if any(check(kind) for check in texts) else None


class Column:
    """A column of a decoded row group, from its pyarrow array."""

    def __init__(self, array: Any) -> None:
        self.layout = layout_of(array.type)
        self._array = array
        self._nulls = _mask(array)
        if self.layout is None or self.layout.dtype is None:
            return
        if self.layout.kind == "lists":
            flat = self._flatten(array, array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
            self.spans = Spans(flat, self._ends, "the column")
        elif self.layout.shape:
            if array.null_count:  # null lists have no numbers
                array = array.fill_null([0] * self.layout.shape[0])
            flat = self._flatten(array, np.full(len(array), self.layout.shape[0]))
            self._rows = flat.reshape(-1, *self.layout.shape)
        else:
            self._rows = _filled(array)

    def _flatten(self, array: Any, lengths: Any) -> Any:
        flat = array.flatten()
        self._ends = np.cumsum(lengths, dtype=np.int64)
        if flat.null_count:
            before = np.concatenate([[0], np.cumsum(_mask(flat))])
            inside = before[self._ends] > before[self._ends - lengths]
            self._nulls = inside if self._nulls is None else inside | self._nulls
        return _filled(flat)

    def check(self, name: str, rows: Int64Array) -> None:
        """Raise a ValueError if one of the rows is null or has a null."""
        if self._nulls is not None and self._nulls[rows].any():
            raise ValueError(
                f"column {name!r} has a null among the rows of a batch, which a tensor cannot hold. Leave the column out "
                "(columns=...), or replace nulls in a transform."
            )

    def take(self, rows: Int64Array) -> Any:
        """Gather numbers (B, *)."""
        return np.take(self._rows, rows, axis=0)

    def objects(self, rows: Int64Array) -> list[Any]:
        """Return values (B,) as Python objects."""
        found: list[Any] = self._array.take(rows).to_pylist()
        return found


def _mask(array: Any) -> Any:
    """Return a mask (N,) of nulls; None if there are none."""
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _filled(array: Any) -> Any:
    """Return numbers (N,) with 0 for nulls; a view if there are no nulls."""
    return (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)


Part = tuple[Column, Int64Array, Int64Array]  # a column, positions in the batch, and the rows for them


def make_batch(name: str, layout: Layout, parts: Sequence[Part], size: int) -> Any:
    """Gather a batch of one column from its parts; raise a ValueError if a part has another type, or a row is null."""
    for column, _, rows in parts:
        if column.layout != layout:
            raise ValueError(f"column {name!r} gives {column.layout} here and {layout} in the first shard.")
        if layout.dtype is not None:
            column.check(name, rows)
    if layout.dtype is None:
        return _objects(name, parts, size)
    if layout.kind == "lists":
        return join_parts([(column.spans, positions, rows) for column, positions, rows in parts], size, layout.dtype)
    if len(parts) == 1:
        return torch.from_numpy(parts[0][0].take(parts[0][2]).astype(layout.dtype, copy=False))
    batch = np.empty((size, *layout.shape), dtype=layout.dtype)
    for column, positions, rows in parts:
        batch[positions] = column.take(rows)
    return torch.from_numpy(batch)


def _objects(name: str, parts: Sequence[Part], size: int) -> list[Any]:
    objects: list[Any] = [None] * size
    for column, positions, rows in parts:
        for place, value in zip(positions.tolist(), column.objects(rows), strict=True):
            objects[place] = value
    if any(value is None for value in objects) and not all(value is None for value in objects):
        raise ValueError(f"column {name!r} has nulls and values in one batch. Replace nulls in a transform.")
    return objects
