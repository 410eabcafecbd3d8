"""Sequences of several lengths, checked: joined end to end, or padded to one length."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from operator import add
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
    offsets = np.zeros(len(pieces.lengths) + 1, dtype=np.int64)
    np.cumsum(pieces.lengths, out=offsets[1:])
    return Ragged(join_spaced(pieces, None), torch.from_numpy(offsets))


def pad(pieces: Pieces, *, steps: int, value: float = 0, side: Side = "right") -> Tensor:
    """Copy sequences into a batch (B, `steps`, *F)."""
    shape = pieces.like.shape[1:]
    if steps * math.prod(shape) >= _GROUP:
        return _pad_long(pieces, steps, value, side)
    gaps = [steps - length for length in pieces.lengths]
    return join_spaced(pieces, gaps, value, side).view(len(gaps), steps, *shape)


def join_spaced(pieces: Pieces, gaps: list[int] | None, value: float = 0, side: Side = "right") -> Tensor:
    """Copy sequences end to end, with as many steps of padding beside each as `gaps` says."""
    like, lengths, count = pieces.like, pieces.lengths, len(pieces.lengths)
    sizes = lengths if gaps is None else list(map(add, lengths, gaps))
    group = max(1, (_GROUP - 1) // max(1, max(sizes) * math.prod(like.shape[1:])))
    starts = range(0, count, group)
    if gaps is not None:
        filler = _fillers(isinstance(pieces.items[0], np.ndarray), like.dtype, like.device, like.shape[1:], value)
        groups = [_spaced(pieces, gaps, filler, low, low + group, side) for low in starts]
    elif all(lengths):
        groups = [pieces.items[low : low + group] for low in starts]
    else:
        kept = list(zip(pieces.items, lengths, strict=True))
        groups = [[item for item, length in kept[low : low + group] if length] for low in starts]
    return _concatenate(groups, [sum(sizes[low : low + group]) for low in starts], pieces)


def _spaced(pieces: Pieces, gaps: list[int], filler: "_Fillers", low: int, high: int, side: Side) -> list[Any]:
    """Return sequences with their padding, none of them empty."""
    parts: list[Any] = []
    left = side == "left"
    for item, length, gap in zip(pieces.items[low:high], pieces.lengths[low:high], gaps[low:high], strict=True):
        if gap and left:
            parts.append(filler[gap])
        if length:
            parts.append(item)
        if gap and not left:
            parts.append(filler[gap])
    return parts


def _pad_long(pieces: Pieces, steps: int, value: float, side: Side) -> Tensor:
    padded = new_empty((len(pieces.lengths), steps, *pieces.like.shape[1:]), pieces.like)
    for place, (item, length) in enumerate(zip(map(as_tensor, pieces.items), pieces.lengths, strict=True)):
        row = padded[place]  # autograd does not allow writing to the rows of an iteration
        low = 0 if side == "right" else steps - length
        row[:low] = value
        row[low : low + length] = item
        row[low + length :] = value
    return padded


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
def _fillers(arrays: bool, dtype: torch.dtype, device: torch.device, shape: torch.Size, value: float) -> _Fillers:
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
