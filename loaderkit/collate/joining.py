"""Sequences of several lengths, checked: joined end to end, or padded to one length."""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from loaderkit.collate.rules import Side
from loaderkit.collate.sequences import Array, Pieces, as_tensor, check_shapes, split
from loaderkit.datasets.ragged import Ragged
from loaderkit.system.memory import as_array, is_shared, new_empty, new_full

# Where torch has several threads it joins groups of fewer elements than this in one of them, piece by piece; a larger
# group takes twenty times as long for each piece.
_GROUP = 1 << 15
# Rows of fewer elements are joined first, and then spread; longer ones are copied one by one.
_LONG_ROW = 1 << 15


def join(pieces: Pieces) -> Ragged:
    """Copy sequences end to end."""
    offsets = np.fromiter(accumulate(pieces.lengths, initial=0), np.int64, len(pieces.lengths) + 1)
    return Ragged(join_values(pieces), torch.from_numpy(offsets))


def join_values(pieces: Pieces) -> Tensor:
    """Copy sequences end to end, into one tensor (sum of T_i, *F)."""
    items: list[Any] = pieces.items if pieces.joined is None else [pieces.joined]
    if not all(pieces.lengths):  # torch.cat is slow where there are empty pieces
        items = [item for item in items if len(item)]
    shape = (sum(pieces.lengths), *pieces.like.shape[1:])
    if not items:
        return torch.empty(shape, dtype=pieces.like.dtype, device=pieces.like.device)
    if not isinstance(items[0], Tensor):
        return _join_arrays(items, shape, pieces.like)
    try:
        return _join_tensors(items, shape, pieces.like)
    except RuntimeError:
        check_shapes(pieces.items, pieces.field, pieces.collate)
        if not any(item.requires_grad for item in items):
            raise
        return torch.cat(items)  # there is no gradient through `out`


def joined_values(pieces: Pieces) -> Tensor:
    """Return sequences end to end (sum of T_i, *F), which may be those given and not a copy."""
    return join_values(pieces) if pieces.joined is None else pieces.joined


def _join_tensors(items: list[Tensor], shape: tuple[int, ...], like: Tensor) -> Tensor:
    size = math.prod(shape)
    whole = _joins_whole(size)
    if whole and not is_shared(size * like.itemsize):
        return torch.cat(items)
    out = new_empty(shape, like)
    if whole:
        return torch.cat(items, out=out)
    lengths = list(map(len, items))
    group = max(1, (_GROUP - 1) // max(1, max(lengths) * math.prod(shape[1:])))
    starts = range(0, len(items), group)
    parts = split(out, [sum(lengths[low : low + group]) for low in starts])
    for low, part in zip(starts, parts, strict=True):
        torch.cat(items[low : low + group], out=part)
    return out


def _join_arrays(items: list[Array], shape: tuple[int, ...], like: Tensor) -> Tensor:
    if is_shared(math.prod(shape) * like.itemsize):
        out = new_empty(shape, like)
        np.concatenate(items, out=out.numpy())
        return out
    try:
        # A third of the time of np.concatenate.
        joined: Callable[..., Tensor] = torch.frombuffer
        return joined(bytearray().join(items), dtype=like.dtype).view(shape)  # type: ignore[arg-type]
    except (BufferError, TypeError, ValueError):  # not contiguous
        return torch.from_numpy(np.concatenate(items))


def pad(pieces: Pieces, there: Tensor, value: float = 0, side: Side = "right") -> Tensor:
    """Copy sequences into a batch (B, T, *F).

    Args:
        pieces: B sequences.
        there: (B, T), bool: where they lie, as `valid` says.
        value: Written beside them.
        side: On which side.
    """
    like = pieces.like
    if there.shape[1] * math.prod(like.shape[1:]) < _LONG_ROW:
        return spread(joined_values(pieces), there, value)
    pieces.separate()
    padded = new_empty((*there.shape, *like.shape[1:]), like)
    for place, (item, length) in enumerate(zip(map(as_tensor, pieces.items), pieces.lengths, strict=True)):
        row = padded[place]  # autograd does not allow writing to the rows of an iteration
        low = 0 if side == "right" else len(row) - length
        row[:low] = value
        row[low : low + length] = item
        row[low + length :] = value
    return padded


def spreads_whole(shape: tuple[int, int], size: int, itemsize: int) -> bool:
    """Say whether sequences of `size` elements are best joined by one `torch.cat`, and spread to a batch of that shape."""
    return shape[1] < _LONG_ROW and _joins_whole(size) and not is_shared(shape[0] * shape[1] * itemsize)


def _joins_whole(size: int) -> bool:
    return size < _GROUP or torch.get_num_threads() == 1


def spread(joined: Tensor, there: Tensor, value: float) -> Tensor:
    """Copy steps (N, *F) to where `there` (R, T), bool, is true, row by row, and write `value` elsewhere: (R, T, *F)."""
    shape = (*there.shape, *joined.shape[1:])
    if joined.requires_grad or joined.device.type != "cpu":
        out = joined.new_full(shape, value)
        out[there.to(joined.device)] = joined
        return out
    steps = as_array(joined)
    out, rows = new_full(shape, steps, joined.dtype, value)
    rows[there.numpy()] = steps  # numpy copies each run of true places as one
    return out


def valid(lengths: Array, steps: int, side: Side) -> Tensor:
    """Return where the data is in a padded batch (B, `steps`), bool, of `lengths` (B,)."""
    return _to_send(windows(steps, side)[lengths])


def _to_send(array: Array) -> Tensor:
    tensor = torch.from_numpy(array)
    return new_empty(tensor.shape, tensor).copy_(tensor) if is_shared(array.nbytes) else tensor


@lru_cache(maxsize=1024)
def windows(steps: int, side: Side) -> Array:
    """Return where the data is (steps + 1, steps), bool, for lengths 0 to `steps`: each row is a window of one step function."""
    step = np.arange(2 * steps + 1) < steps if side == "right" else np.arange(2 * steps + 1) >= steps
    rows = sliding_window_view(step, steps) if steps else np.empty((1, 0), bool)
    return rows[steps::-1] if side == "right" else rows[: steps + 1]
