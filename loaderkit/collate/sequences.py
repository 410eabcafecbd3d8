"""The sequences of one field: whatever they come as, checked to be of one dtype and shape but for their lengths."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter, countOf, sub
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from loaderkit.collate.rules import Pad, difference, named
from loaderkit.collate.stack import CollateError, from_array
from loaderkit.datasets.ragged import Ragged

Array = npt.NDArray[Any]
_DTYPE, _NDIM = attrgetter("dtype"), attrgetter("ndim")


@dataclass(slots=True)
class Pieces:
    """Sequences (T_i, *F) of one dtype and one F.

    Args:
        items: B tensors, or B arrays; none where they are joined.
        lengths: Their T_i.
        like: A tensor with their dtype, device and F.
        field: Its path, for messages.
        collate: Who asks, for messages.
        joined: (T_1 + ... + T_B, *F): they themselves, where they came end to end; not to be written to.
    """

    items: list[Any]
    lengths: list[int]
    like: Tensor
    field: str
    collate: str
    joined: Tensor | None = None

    def separate(self) -> None:
        """Make items of what is joined."""
        if self.joined is not None:
            self.items, self.joined = split(self.joined, self.lengths), None

    def truncate(self, rule: Pad) -> None:
        """Cut what is longer than the rule's maximum.

        Raises:
            CollateError: If the rule refuses that.
        """
        (most,) = rule.each_max
        if max(self.lengths) <= most:
            return
        check_too_long([[length] for length in self.lengths], rule, self.field)
        self.separate()
        for row, length in enumerate(self.lengths):
            if length > most:
                low = length - int(most) if rule.too_long == "truncate_left" else 0
                self.items[row] = self.items[row][low : low + int(most)]
                self.lengths[row] = int(most)


def check_too_long(sizes: Sequence[Sequence[int]], rule: Pad, field: str) -> None:
    """Refuse samples that are longer than the rule's maximum, if it says so."""
    rows = [row for row, size in enumerate(sizes) if any(n > most for n, most in zip(size, rule.each_max, strict=True))]
    if rows and rule.too_long == "error":
        found = sizes[rows[0]][0] if len(rule.each_dim) == 1 else tuple(sizes[rows[0]])
        raise CollateError(
            f"PadCollate: {named(field)} has length {found}, wanted at most max_length={rule.max_length}. Cut it by "
            "Pad(too_long='truncate_right') or 'truncate_left'",
            rows,
        )


def pieces_of(values: Sequence[Any] | Ragged, field: str, collate: str = "PadCollate") -> Pieces:
    """Check the sequences of one field.

    Args:
        values: B tensors, arrays, or lists of numbers; or all in one `Ragged`.
        field: Its path, for messages.
        collate: Who asks, for messages.

    Raises:
        CollateError: If one is no sequence, or their dtypes or other axes differ.
    """
    if isinstance(values, Ragged):
        return _pieces_of_ragged(values, field, collate)
    items = list(values)
    kinds = set(map(type, items))
    if kinds != {Tensor} and kinds != {np.ndarray}:
        items = _plain(items, field, collate)
    first = items[0]
    if countOf(map(_DTYPE, items), first.dtype) < len(items):
        check_shapes(items, field, collate)
        raise difference("dtype", [item.dtype for item in items], field, collate)
    tensors = isinstance(first, Tensor)
    if not tensors and not first.dtype.isnative:
        items = [item.astype(item.dtype.newbyteorder("=")) for item in items]
    if first.ndim == 1 and tensors:
        lengths = list(map(Tensor.numel, items))  # len() is slow; torch.cat finds those of other shapes, unless empty
        if not all(lengths):
            check_shapes(items, field, collate)
    else:
        check_shapes(items, field, collate)
        lengths = list(map(len, items))
    return Pieces(items, lengths, first if tensors else _like(first, field, collate), field, collate)


def check_shapes(items: list[Any], field: str, collate: str) -> None:
    """Refuse sequences (T_i, *F) that have no axis, or more than one F."""
    axes = set(map(_NDIM, items))
    if 0 in axes:
        row = next(row for row, item in enumerate(items) if not item.ndim)
        raise _no_sequence("a tensor without axes", field, row, collate)
    if axes != {1} and len({item.shape[1:] for item in items}) > 1:
        raise difference("shape after the first axis", [tuple(item.shape[1:]) for item in items], field, collate)


def _like(array: Array, field: str, collate: str) -> Tensor:
    try:
        return torch.from_numpy(np.empty((0, *array.shape[1:]), array.dtype.newbyteorder("=")))
    except TypeError:
        raise _no_sequence(f"an array of {array.dtype}", field, 0, collate) from None


def _plain(values: list[Any], field: str, collate: str) -> list[Any]:
    """Make all plain tensors, or all arrays; empty lists take the type of the others."""
    items = [as_sequence(value, field, row, collate) for row, value in enumerate(values)]
    bare = [isinstance(value, list | tuple) and not len(value) for value in values]
    known = next((item for item, empty in zip(items, bare, strict=True) if not empty), None)
    if known is not None and any(bare):
        like = known.dtype if isinstance(known, Tensor) else as_tensor(known[:0]).dtype
        items = [torch.empty(0, dtype=like) if empty else item for item, empty in zip(items, bare, strict=True)]
    if any(isinstance(item, Tensor) for item in items):
        return [as_tensor(item).as_subclass(Tensor) for item in items]
    return items


def _pieces_of_ragged(ragged: Ragged, field: str, collate: str) -> Pieces:
    values, ends = ragged.values, ragged.offsets.tolist()
    return Pieces([], list(map(sub, ends[1:], ends)), values, field, collate, values[ends[0] : ends[-1]])


def as_sequence(value: Any, field: str, row: int, collate: str) -> Any:
    """Return a tensor, or an array that torch can take; lists become one of them, as `torch.tensor` does."""
    if isinstance(value, list | tuple):
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise CollateError(f"{collate}: {named(field)} has lists that are no array: {error}", [row]) from None
        if value.dtype == np.float64:
            value = torch.from_numpy(value).to(torch.get_default_dtype())
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        raise _no_sequence(f"an array of {value.dtype}", field, row, collate)
    if isinstance(value, Mapping):
        raise CollateError(
            f"{collate}: {named(field)} is a {type(value).__name__} of {list(value)[:5]}, wanted a sequence (T, *). Say which of "
            "its fields are sequences: fields=",
            [row],
        )
    if not isinstance(value, Tensor | np.ndarray) or value.ndim == 0:
        found = "a tensor without axes" if isinstance(value, Tensor | np.ndarray) else type(value).__name__
        raise _no_sequence(found, field, row, collate)
    return value


def as_tensor(value: Any) -> Tensor:
    """Return an array as a tensor, which must not be written to."""
    if isinstance(value, Tensor):
        return value
    return from_array(value if value.flags.writeable else value.copy())  # torch warns of those read-only


def _no_sequence(found: str, field: str, row: int, collate: str) -> CollateError:
    return CollateError(f"{collate}: {named(field)} is {found}, wanted a sequence (T, *)", [row])


@lru_cache(maxsize=64)
def check_value(value: float, dtype: torch.dtype, field: str, collate: str = "PadCollate") -> None:
    """Refuse to pad with what the dtype can't hold.

    Raises:
        CollateError: If it can't.
    """
    if dtype.is_floating_point:
        most = torch.finfo(dtype).max
        if most < abs(value) < math.inf:
            raise CollateError(
                f"{collate}: {named(field)} is padded with {value}, wanted a number from {-most} to {most}, or infinity, for {dtype}"
            )
        return
    if dtype.is_complex:
        return
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not low <= value <= high or value != int(value):
        raise CollateError(
            f"{collate}: {named(field)} is padded with {value}, wanted a whole number from {low} to {high} for {dtype}"
        )


def split(values: Tensor, lengths: list[int]) -> list[Tensor]:
    """Return the sequences that lie end to end in `values`, as views."""
    parts: list[Tensor] = list(values.split_with_sizes(lengths))
    return parts
