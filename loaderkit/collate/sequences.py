"""The sequences of one field: checked to agree in dtype and shape, and joined end to end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter, countOf, sub
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.collate.rules import Pad
from loaderkit.datasets.ragged import Ragged
from loaderkit.system.arrays import native
from loaderkit.system.stack import CollateError, check_unmasked, difference, from_array, named
from loaderkit.system.types import Array

_PLAIN = {Tensor, np.ndarray}
# If one of these is mixed with another dtype, torch.cat raises or returns a third dtype. So the check can come after it.
_UNPROMOTED = frozenset((torch.uint16, torch.uint32, torch.uint64))
_DTYPE, _NDIM = attrgetter("dtype"), attrgetter("ndim")


@dataclass(slots=True)
class FieldSequences:
    """B sequences (T_i, *F) with one dtype and one F.

    Args:
        items: B tensors, or B arrays. Empty if `joined` is set.
        lengths: The lengths T_i.
        like: A tensor with the sequences' dtype, device and F.
        field: The field's path, for messages.
        collate: The collate's name, for messages.
        joined: The sequences end to end (T_1 + ... + T_B, *F), if the dataset reads them joined. Do not write to this
            tensor.
    """

    items: list[Any]
    lengths: list[int]
    like: Tensor
    field: str
    collate: str
    joined: Tensor | None = None

    def split(self) -> list[Any]:
        """Return each sequence as a tensor or an array."""
        return self.items if self.joined is None else split(self.joined, self.lengths)

    def join(self, *, copy: bool = True) -> Tensor:
        """Return the sequences end to end (T_1 + ... + T_B, *F). Without `copy`, this may be memory of the dataset."""
        if self.joined is not None:
            return self.joined.clone() if copy else self.joined
        if not isinstance(self.items[0], Tensor):
            try:
                flat = np.frombuffer(bytearray().join(self.items), self.items[0].dtype)  # faster than np.concatenate
                return torch.from_numpy(flat.reshape(-1, *self.like.shape[1:]))
            except (BufferError, TypeError, ValueError):  # not contiguous
                return torch.from_numpy(np.concatenate(self.items))
        try:
            joined = torch.cat(self.items)
        except RuntimeError:
            check_dtypes(self.items, self.field, self.collate)
            check_shapes(self.items, self.field, self.collate)
            raise
        if joined.dtype is not self.like.dtype:
            check_dtypes(self.items, self.field, self.collate)
        return joined

    def to_ragged(self) -> Ragged:
        """Return a copy of the sequences as values and offsets."""
        return Ragged(self.join(), torch.from_numpy(np.cumsum([0, *self.lengths])))

    def truncate(self, rule: Pad) -> None:
        """Cut sequences that are longer than the rule's `max_length`, or raise a CollateError if the rule says so."""
        (most,) = rule.each_max
        if max(self.lengths) <= most:
            return
        check_too_long([[length] for length in self.lengths], rule, self.field)
        self.items, self.joined = list(self.split()), None
        for row, length in enumerate(self.lengths):
            if length > most:
                start = length - int(most) if rule.too_long == "truncate_left" else 0
                self.items[row] = self.items[row][start : start + int(most)]
                self.lengths[row] = int(most)


def sequences_of(values: Sequence[Any] | Ragged, field: str, collate: str = "PadCollate") -> FieldSequences:
    """Check the sequences of one field: B tensors, arrays or lists of numbers, or all of them in one `Ragged`."""
    if isinstance(values, Ragged):
        steps, ends = values.values, values.offsets.tolist()
        return FieldSequences([], list(map(sub, ends[1:], ends)), steps, field, collate, steps[ends[0] : ends[-1]])
    items = values if type(values) is list else list(values)
    kinds = set(map(type, items))
    if len(kinds) > 1 or not kinds <= _PLAIN:
        items = _as_one_kind(items, field, collate)
    first = items[0]
    if first.dtype not in _UNPROMOTED:
        check_dtypes(items, field, collate)
    tensors = isinstance(first, Tensor)
    if not tensors and not first.dtype.isnative:
        items = list(map(native, items))
    if first.ndim == 1 and tensors:
        # Tensor.numel is faster than len. torch.cat refuses other shapes later, except for empty tensors.
        lengths = list(map(Tensor.numel, items))
        if not all(lengths):
            check_shapes(items, field, collate)
    else:
        check_shapes(items, field, collate)
        lengths = list(map(len, items))
    return FieldSequences(items, lengths, first if tensors else _empty_like(first, field, collate), field, collate)


def check_dtypes(items: Sequence[Tensor | Array], field: str, collate: str) -> None:
    """Refuse items with different dtypes."""
    if countOf(map(_DTYPE, items), items[0].dtype) < len(items):
        check_shapes(items, field, collate)
        raise difference("dtype", [item.dtype for item in items], field, collate)


def check_shapes(items: Sequence[Tensor | Array], field: str, collate: str) -> None:
    """Refuse items without axes, and items (T_i, *F) with different F."""
    axes = set(map(_NDIM, items))
    if 0 in axes:
        row = next(row for row, item in enumerate(items) if not item.ndim)
        raise _no_sequence("a tensor without axes", field, row, collate)
    if axes != {1} and len({item.shape[1:] for item in items}) > 1:
        raise difference("shape after the first axis", [tuple(item.shape[1:]) for item in items], field, collate)


def check_too_long(sizes: Sequence[Sequence[int]], rule: Pad, field: str) -> None:
    """Refuse samples that are longer than `max_length`, if the rule says `too_long="error"`."""
    rows = [row for row, size in enumerate(sizes) if any(n > most for n, most in zip(size, rule.each_max, strict=True))]
    if rows and rule.too_long == "error":
        found = sizes[rows[0]][0] if len(rule.each_dim) == 1 else tuple(sizes[rows[0]])
        raise CollateError(
            f"PadCollate: {named(field)} has length {found}, wanted at most max_length={rule.max_length}. Cut it with "
            "Pad(too_long='truncate_right') or 'truncate_left'",
            rows,
        )


def _empty_like(array: Array, field: str, collate: str) -> Tensor:
    try:
        return torch.from_numpy(np.empty((0, *array.shape[1:]), array.dtype.newbyteorder("=")))
    except TypeError:
        raise _no_sequence(f"an array of {array.dtype}", field, 0, collate) from None


def _as_one_kind(values: list[object], field: str, collate: str) -> list[Any]:
    """Return the values as plain tensors, or all as arrays. An empty list takes the dtype of the other values."""
    items = [as_sequence(value, field, row, collate) for row, value in enumerate(values)]
    bare = [isinstance(value, list | tuple) and not len(value) for value in values]
    known = next((item for item, empty in zip(items, bare, strict=True) if not empty), None)
    if known is not None and any(bare):
        like = known.dtype if isinstance(known, Tensor) else as_tensor(known[:0]).dtype
        items = [
            torch.empty(0, dtype=like, device="cpu") if empty else item for item, empty in zip(items, bare, strict=True)
        ]
    if any(isinstance(item, Tensor) for item in items):
        return [as_tensor(item).as_subclass(Tensor) for item in items]
    return items


def as_sequence(value: object, field: str, row: int, collate: str) -> Tensor | Array:
    """Return a tensor, or an array that torch accepts. Lists get the dtype that `torch.tensor` gives them."""
    if isinstance(value, list | tuple):
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise CollateError(f"{collate}: {named(field)} has lists that form no array: {error}", [row]) from None
        if value.dtype == np.float64:
            value = torch.from_numpy(value).to(torch.get_default_dtype())
    check_unmasked(value, field, row, collate)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        raise _no_sequence(f"an array of {value.dtype}", field, row, collate)
    if isinstance(value, Mapping):
        raise CollateError(
            f"{collate}: {named(field)} is a {type(value).__name__} of {list(value)[:5]}, wanted a sequence (T, *). Name the "
            "fields that hold sequences: fields=",
            [row],
        )
    if not isinstance(value, Tensor | np.ndarray) or value.ndim == 0:
        found = "a tensor without axes" if isinstance(value, Tensor | np.ndarray) else type(value).__name__
        raise _no_sequence(found, field, row, collate)
    return value


def as_tensor(value: Tensor | Array) -> Tensor:
    """Return an array as a tensor, which may share the array's memory: do not write to it."""
    if isinstance(value, Tensor):
        return value
    return from_array(value if value.flags.writeable else value.copy())  # torch warns of read-only arrays


def _no_sequence(found: str, field: str, row: int, collate: str) -> CollateError:
    return CollateError(f"{collate}: {named(field)} is {found}, wanted a sequence (T, *)", [row])


@lru_cache(maxsize=64)
def check_value(value: float, dtype: torch.dtype, field: str, collate: str = "PadCollate") -> None:
    """Refuse a padding value that the dtype cannot hold."""
    if dtype.is_complex:
        return
    if dtype.is_floating_point:
        low, high = -torch.finfo(dtype).max, torch.finfo(dtype).max
        fits, wanted = not high < abs(value) < math.inf, f"a number from {low} to {high}, or infinity,"
    else:
        low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        fits, wanted = low <= value <= high and value == int(value), f"a whole number from {low} to {high}"
    if not fits:
        raise CollateError(f"{collate}: {named(field)} is padded with {value}, wanted {wanted} for {dtype}")


def split(values: Tensor, lengths: list[int]) -> list[Tensor]:
    """Return the sequences in `values` (T_1 + ... + T_B, *F) as views."""
    return list(values.split_with_sizes(lengths))
