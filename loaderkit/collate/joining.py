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

from loaderkit.collate.memory import as_array, bits_of, is_shared, new_empty, new_full
from loaderkit.collate.rules import Side
from loaderkit.collate.sequences import Array, Pieces, as_tensor, check_shapes, split
from loaderkit.datasets.ragged import Ragged

# Where torch has several threads it joins groups of fewer elements than this in one of them, piece by piece; a larger
# group takes twenty times as long for each piece.
_GROUP = 1 << 15
# Rows of fewer elements are joined first, and then spread; longer ones are copied one by one.
_LONG_ROW = 1 << 15
# Small whole numbers are cut out of the joined sequences, which takes its time by the byte, where there are many: to spread
# them takes its time by the element. Beyond a MB the caches are too small for what is made on the way.
_SMALL = frozenset((torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16))
_FEW, _MANY = 1 << 14, 1 << 19
_BOOL = np.dtype(np.bool_)


def join(pieces: Pieces) -> Ragged:
    """Copy sequences end to end."""
    offsets = np.fromiter(accumulate(pieces.lengths, initial=0), np.int64, len(pieces.lengths) + 1)
    return Ragged(join_values(pieces), torch.from_numpy(offsets))


def join_values(pieces: Pieces, before: int = 0, after: int = 0) -> Tensor:
    """Copy sequences end to end, into one tensor (before + sum of T_i + after, *F); there is nothing of note at its ends."""
    items: list[Any] = pieces.items if pieces.joined is None else [pieces.joined]
    room = [room_of(before or after, items[0].dtype)] if before or after else []
    if not all(pieces.lengths):  # torch.cat is slow where there are empty pieces
        items = [item for item in items if len(item)]
    items = [*room, *items] if before else [*items, *room]
    shape = (sum(pieces.lengths) + before + after, *pieces.like.shape[1:])
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


@lru_cache(maxsize=1024)
def room_of(steps: int, dtype: Any) -> Any:
    """Return that many elements, not to be written to."""
    return torch.zeros(steps, dtype=dtype) if isinstance(dtype, torch.dtype) else np.zeros(steps, dtype)


def _join_tensors(items: list[Tensor], shape: tuple[int, ...], like: Tensor) -> Tensor:
    size = math.prod(shape)
    whole = joins_whole(size)
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


def pad(pieces: Pieces, lengths: Array, there: Tensor, value: float = 0, side: Side = "right") -> Tensor:
    """Copy sequences into a batch (B, T, *F).

    Args:
        pieces: B sequences.
        lengths: (B,), int64, of them.
        there: (B, T), bool: where they lie, as `valid` says.
        value: Written beside them.
        side: On which side.
    """
    like = pieces.like
    if like.ndim == 1 and like.is_cpu and is_cut(like.dtype, there.numel()):
        steps = there.shape[1]
        joined = join_values(pieces, after=steps) if side == "right" else join_values(pieces, before=steps)
        return cut(joined, lengths, there, value, side)
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


def is_cut(dtype: torch.dtype, size: int) -> bool:
    """Say whether a padded batch of that many elements is quicker cut from the joined sequences than spread."""
    return dtype in _SMALL and _FEW <= size <= _MANY


def joins_whole(size: int) -> bool:
    """Say whether one `torch.cat` is as quick as several for that many elements."""
    return size < _GROUP or torch.get_num_threads() == 1


def cut(sequences: Tensor, lengths: Array, there: Tensor, value: float, side: Side) -> Tensor:
    """Cut rows (B, T) from joined sequences, one at the start or end of each, and overwrite what is its neighbours'.

    Args:
        sequences: End to end, with T elements behind them (on the left: before them). They are written to.
        lengths: (B,), int64, of them.
        there: (B, T), bool: where they lie, as `valid` says.
        value: Written beside them.
        side: On which side.
    """
    joined, steps, ends = as_array(sequences), there.shape[1], lengths.cumsum()
    starts = ends - lengths if side == "right" else ends
    other = bits_of(value, sequences.dtype) if value else None
    if other is not None:
        joined ^= other
    stride = joined.itemsize  # sliding_window_view takes longer than all the rest
    rows = np.ndarray((len(joined) - steps + 1, steps), joined.dtype, joined, strides=(stride, stride))[starts]
    rows *= there.numpy()
    if other is not None:
        rows ^= other
    return _to_send(rows)


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
    return _to_send(_windows(steps, side, _BOOL)[lengths])


def _to_send(array: Array) -> Tensor:
    tensor = torch.from_numpy(array)
    return new_empty(tensor.shape, tensor).copy_(tensor) if is_shared(array.nbytes) else tensor


@lru_cache(maxsize=1024)
def _windows(steps: int, side: Side, dtype: np.dtype[Any]) -> Array:
    """Return the rows for lengths 0 to `steps`, all bits set where the data is: each is a window of one step function."""
    step = np.arange(2 * steps + 1) < steps if side == "right" else np.arange(2 * steps + 1) >= steps
    bits = step if dtype == _BOOL else np.where(step, ~np.zeros((), dtype), np.zeros((), dtype))
    rows = sliding_window_view(bits, steps) if steps else np.empty((1, 0), dtype)
    return rows[steps::-1] if side == "right" else rows[: steps + 1]
