"""Sequences of several lengths, checked: joined end to end, or padded to one length."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.collate.memory import is_shared, new_empty
from loaderkit.collate.rules import Side
from loaderkit.collate.sequences import Array, Pieces, as_tensor, check_shapes, split
from loaderkit.datasets.ragged import Ragged

# Pieces are joined by torch.cat in groups of fewer elements than this: such a group it copies in one thread, piece by
# piece; a larger one takes twenty times as long for each piece. Empty pieces have the same effect.
_GROUP = 1 << 15
_MOST_FILLERS = 1 << 12
_NO_MASK = torch.empty(0, dtype=torch.bool)


def join(pieces: Pieces) -> Ragged:
    """Copy sequences end to end."""
    count = len(pieces.lengths)
    group = max(1, _rows_in_group(pieces.like, max(pieces.lengths)))
    lengths = [sum(pieces.lengths[start : start + group]) for start in range(0, count, group)]
    if all(pieces.lengths):
        groups = [pieces.items[start : start + group] for start in range(0, count, group)]
    else:
        kept = list(zip(pieces.items, pieces.lengths, strict=True))
        groups = [[item for item, length in kept[low : low + group] if length] for low in range(0, count, group)]
    values = _concatenate(groups, lengths, pieces)
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(pieces.lengths, out=offsets[1:])
    return Ragged(values, torch.from_numpy(offsets))


def pad(pieces: Pieces, *, steps: int, value: float = 0, side: Side = "right") -> Tensor:
    """Copy sequences into a batch (B, `steps`, *F)."""
    count, like = len(pieces.lengths), pieces.like
    group = _rows_in_group(like, steps)
    if group == 0:
        return _pad_long(pieces, steps, value, side)
    arrays = isinstance(pieces.items[0], np.ndarray)
    filler = _fillers(arrays, like.dtype, like.device, tuple(like.shape[1:]), value)
    groups: list[list[Any]] = []
    for start in range(0, count, group):
        parts: list[Any] = []
        for item, length in zip(
            pieces.items[start : start + group], pieces.lengths[start : start + group], strict=True
        ):
            if side == "left" and length < steps:
                parts.append(filler[steps - length])
            if length:
                parts.append(item)
            if side == "right" and length < steps:
                parts.append(filler[steps - length])
        groups.append(parts)
    lengths = [steps * min(group, count - start) for start in range(0, count, group)]
    return _concatenate(groups, lengths, pieces).view(count, steps, *like.shape[1:])


def _pad_long(pieces: Pieces, steps: int, value: float, side: Side) -> Tensor:
    padded = new_empty((len(pieces.lengths), steps, *pieces.like.shape[1:]), pieces.like)
    for place, (item, length) in enumerate(zip(map(as_tensor, pieces.items), pieces.lengths, strict=True)):
        row = padded[place]  # autograd does not allow writing to the rows of an iteration
        low = 0 if side == "right" else steps - length
        row[:low] = value
        row[low : low + length] = item
        row[low + length :] = value
    return padded


def _rows_in_group(like: Tensor, steps: int) -> int:
    """Return how many sequences of that length go into one group; 0: one is too long for any."""
    return (_GROUP - 1) // max(1, steps * math.prod(like.shape[1:]))


def _concatenate(groups: list[list[Any]], lengths: list[int], pieces: Pieces) -> Tensor:
    """Copy groups of pieces, none of them empty, into one tensor (sum of the groups' lengths, *F)."""
    like = pieces.like
    shape = (sum(lengths), *like.shape[1:])
    first = next(filter(None, groups), None)
    if first is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if not isinstance(first[0], Tensor):
        return _concatenate_arrays(list(chain.from_iterable(groups)) if len(groups) > 1 else first, shape, like)
    try:
        if len(groups) == 1 and not is_shared(math.prod(shape) * like.itemsize):
            return torch.cat(first)
        out = new_empty(shape, like)
        for group, part in zip(groups, split(out, lengths), strict=True):
            if group:
                torch.cat(group, out=part)
        return out
    except RuntimeError:
        check_shapes(pieces.items, pieces.field, pieces.collate)
        if not any(item.requires_grad for item in pieces.items):
            raise
        return torch.cat(list(chain.from_iterable(groups)))  # there is no gradient through `out`


def _concatenate_arrays(pieces: list[Array], shape: tuple[int, ...], like: Tensor) -> Tensor:
    if is_shared(math.prod(shape) * like.itemsize):
        out = new_empty(shape, like)
        np.concatenate(pieces, out=out.numpy())
        return out
    try:
        # A third of the time of np.concatenate.
        joined: Callable[..., Tensor] = torch.frombuffer
        return joined(bytearray().join(pieces), dtype=like.dtype).view(shape)  # type: ignore[arg-type]
    except (BufferError, TypeError, ValueError):  # not contiguous
        return torch.from_numpy(np.concatenate(pieces))


class _Fillers(dict[int, Any]):
    """Stretches of padding by their length: to look one up takes a tenth of the time of cutting it."""

    def __init__(self, step: Tensor, arrays: bool) -> None:
        super().__init__()
        self._base, self._arrays = step, arrays

    def __missing__(self, length: int) -> Any:
        if length > len(self._base):
            self._base = self._base[:1].expand(2 * length, *self._base.shape[1:]).contiguous()
        if len(self) >= _MOST_FILLERS:
            self.clear()
        piece = self._base[:length]
        self[length] = piece.numpy() if self._arrays else piece
        return self[length]


@lru_cache(maxsize=64)
def _fillers(arrays: bool, dtype: torch.dtype, device: torch.device, shape: tuple[int, ...], value: float) -> _Fillers:
    return _Fillers(torch.full((1, *shape), value, dtype=dtype, device=device), arrays)


def valid(lengths: Sequence[int], steps: int, side: Side) -> Tensor:
    """Return where the data is in a padded batch (B, `steps`), bool."""
    sizes = np.array(lengths, dtype=np.int16 if steps < 1 << 15 else np.int64)[:, None]
    shared = is_shared(len(lengths) * steps)
    mask = new_empty((len(lengths), steps), _NO_MASK) if shared else None
    out = None if mask is None else mask.numpy()
    if side == "right":
        found = np.less(_places(steps), sizes, out=out)
    else:
        found = np.greater_equal(_places(steps), steps - sizes, out=out)
    return torch.from_numpy(found) if mask is None else mask


@lru_cache(maxsize=64)
def _places(steps: int) -> Array:
    return np.arange(steps, dtype=np.int16 if steps < 1 << 15 else np.int64)  # int16 takes a quarter of int64's time
