"""Padding: samples of different sizes become one tensor, with lengths and a mask on request."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from loaderkit.collate.rules import Pad, Side
from loaderkit.collate.sequences import (
    as_sequence,
    as_tensor,
    check_too_long,
    check_value,
    sequences_of,
    split,
)
from loaderkit.datasets.ragged import Ragged
from loaderkit.system.batch_memory import LARGE, as_array, bits_of, empty_array, new_empty
from loaderkit.system.stack import CollateError, difference, like_samples, named
from loaderkit.system.types import Array

# Longer rows are copied one by one. Joining them first writes to new memory: 16 rows of 160,000 float32 take 24 ms, not 0.8.
_LONG_ROW = 1 << 15  # elements


def pad_field(values: Any, path: str, rule: Pad) -> tuple[Tensor, dict[str, Tensor]]:
    """Pad the B values of one field; return the batch (B, *), and `lengths` and `mask` if the rule asks for them."""
    if rule.each_dim == (0,):
        sequences = sequences_of(values, path)
        if rule.max_length is not None:
            sequences.truncate(rule)
        steps = _round_up(max(sequences.lengths), rule.each_multiple[0])
        if steps * math.prod(sequences.like.shape[1:]) < _LONG_ROW:
            check_value(rule.value, rule.dtype or sequences.like.dtype, path)
            joined, lengths = sequences.join(copy=False).to(rule.dtype), np.array(sequences.lengths)
            there = _is_data(lengths, steps, rule.side)
            padded = scatter(joined, there, rule.value)
            return _like_samples(padded, values, path), _extras(lengths, there, rule)
        rows = sequences.split()
    else:
        rows = split(values.values, values.offsets.diff().tolist()) if isinstance(values, Ragged) else list(values)
    padded, lengths, there = _pad_each(rows, path, rule)
    return _like_samples(padded, values, path), _extras(lengths, there, rule)


def scatter(steps: Tensor, there: Array, value: float) -> Tensor:
    """Return a batch (R, T, *F) with `steps` (N, *F) at the N true places of `there` (R, T), and `value` elsewhere."""
    shape = (*there.shape, *steps.shape[1:])
    if steps.requires_grad or steps.device.type != "cpu":
        out = steps.new_full(shape, value)
        out[torch.from_numpy(there).to(steps.device)] = steps
        return out
    source = as_array(steps)
    if value or math.prod(shape) * source.itemsize >= LARGE:
        rows = empty_array(shape, source.dtype)
        rows.fill(bits_of(value, steps.dtype))
    else:
        rows = np.zeros(shape, source.dtype)  # faster than filling
    rows[there] = source  # numpy copies each run of true places in one piece
    out = torch.from_numpy(rows)
    return out if out.dtype is steps.dtype else out.view(steps.dtype)


def _is_data(lengths: Array, steps: int, side: Side) -> Array:
    """Return a mask (B, `steps`), bool, that is true where rows of `lengths` (B,) have data."""
    mask: Array = _windows(steps, side)[lengths]
    return mask


@lru_cache(maxsize=1024)
def _windows(steps: int, side: Side) -> Array:
    """Return the masks (steps + 1, steps) of lengths 0 to `steps`, as views of one array of 2 * steps + 1 values."""
    step = np.arange(2 * steps + 1) < steps if side == "right" else np.arange(2 * steps + 1) >= steps
    rows = sliding_window_view(step, steps) if steps else np.empty((1, 0), bool)
    return rows[steps::-1] if side == "right" else rows[: steps + 1]


def _extras(lengths: Array, there: Array, rule: Pad) -> dict[str, Tensor]:
    extras: dict[str, Tensor] = {}
    if rule.lengths:
        extras["lengths"] = torch.from_numpy(lengths)
    if rule.mask:
        mask = torch.from_numpy(there)
        extras["mask"] = (
            torch.zeros(mask.shape, device="cpu").masked_fill_(~mask, -torch.inf) if rule.mask == "additive" else mask
        )
    return extras


def _pad_each(rows: list[object], path: str, rule: Pad) -> tuple[Tensor, Array, Array]:
    """Pad any axes, sample by sample; return the batch (B, *), lengths (B,) or (B, D), and the mask (B, T_1, ..., T_D)."""
    items = [as_tensor(as_sequence(value, path, row, "PadCollate")) for row, value in enumerate(rows)]
    dims = _padded_axes(items, path, rule)
    found = [[item.shape[dim] for dim in dims] for item in items]
    check_too_long(found, rule, path)
    sizes = np.minimum(found, rule.each_max).astype(np.int64)
    steps = [_round_up(most, step) for most, step in zip(sizes.max(0).tolist(), rule.each_multiple, strict=True)]
    shape = list(items[0].shape)
    for dim, most in zip(dims, steps, strict=True):
        shape[dim] = most
    like = items[0].new_empty(0, dtype=rule.dtype or items[0].dtype)
    check_value(rule.value, like.dtype, path)
    padded = new_empty((len(items), *shape), like)
    padded.fill_(rule.value)
    for place, (item, size) in enumerate(zip(items, sizes.tolist(), strict=True)):
        row = padded[place]
        for dim, kept, most in zip(dims, size, steps, strict=True):
            cut = item.shape[dim] - kept if rule.too_long == "truncate_left" else 0
            item, row = item.narrow(dim, cut, kept), row.narrow(dim, 0 if rule.side == "right" else most - kept, kept)
        row.copy_(item)
    there = np.ones(len(items), dtype=bool)
    for number, most in enumerate(steps):
        axis = _is_data(sizes[:, number], most, rule.side)
        there = there[..., None] & axis.reshape(len(items), *[1] * number, most)
    return padded, sizes if len(dims) > 1 else sizes[:, 0], there


def _padded_axes(items: list[Tensor], path: str, rule: Pad) -> list[int]:
    """Return the axes to pad, counted from 0. Raise a CollateError if samples differ in dtype or along another axis."""
    axes = items[0].ndim
    dims = [dim % axes for dim in rule.each_dim if -axes <= dim < axes]
    if len(set(dims)) < len(rule.each_dim):
        raise CollateError(
            f"PadCollate: {named(path)} has {axes} axes, wanted Pad(dims={rule.dims}) to name different ones of them",
            [0],
        )
    if len({item.dtype for item in items}) > 1:
        raise difference("dtype", [item.dtype for item in items], path, "PadCollate")
    if len({item.ndim for item in items}) > 1:
        raise difference("number of axes", [item.ndim for item in items], path, "PadCollate")
    others = [tuple(n for dim, n in enumerate(item.shape) if dim not in dims) for item in items]
    if len(set(others)) > 1:
        raise difference(f"shape without dims {rule.dims}", others, path, "PadCollate")
    return dims


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def _like_samples(padded: Tensor, values: Any, path: str) -> Tensor:
    """Return the batch as the subclass of Tensor that all samples have, as stacking does."""
    if isinstance(values, (Ragged, Tensor)) or type(values[0]) is Tensor or not isinstance(values[0], Tensor):
        return padded
    if len(set(map(type, values))) > 1:
        return padded
    return like_samples(padded.as_subclass(type(values[0])), values, path)


def pad_sequences(
    sequences: Sequence[object] | Ragged, *, value: float = 0, side: Side = "right", multiple_of: int = 1
) -> tuple[Tensor, Tensor]:
    """Stack sequences of different lengths into one padded batch.

    Args:
        sequences: B tensors, arrays or lists (T_i, *F) with one dtype and one F; or a `Ragged`.
        value: The number to pad with.
        side: The side to pad.
        multiple_of: Round the padded length up to this many steps.

    Returns:
        padded (B, T, *F), where T is max(T_i) rounded up; lengths (B,) int64.

    Raises:
        ValueError: If there are no sequences, or dtypes or F differ.

    Examples:
        >>> padded, lengths = lk.pad_sequences([torch.tensor([1, 2, 3]), torch.tensor([4])], value=-1)
        >>> padded.tolist(), lengths.tolist()
        ([[1, 2, 3], [4, -1, -1]], [3, 1])
    """
    if not len(sequences):
        raise ValueError("pad_sequences: no sequences given, wanted at least one.")
    rule = Pad(value=value, side=side, multiple_of=multiple_of, lengths=True)
    padded, extras = pad_field(sequences, "", rule)
    return padded, extras["lengths"]


def unpad(padded: Tensor, lengths: Tensor, *, side: Side = "right", dims: int | tuple[int, ...] = 0) -> list[Tensor]:
    """Return the samples of a padded batch, as views.

    Args:
        padded: The batch (B, *).
        lengths: The samples' lengths (B,), or (B, D) for several dims, as `Pad(lengths=True)` adds them.
        side: The padded side.
        dims: The padded axes of a sample.

    Raises:
        ValueError: If a row or dim has no length.

    Examples:
        >>> rows = lk.unpad(torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1]))
        >>> [row.tolist() for row in rows]
        [[1, 2, 3], [4]]
    """
    each = dims if isinstance(dims, tuple) else (dims,)
    sizes = lengths.reshape(len(lengths), -1).tolist()
    if len(sizes) != len(padded) or any(len(size) != len(each) for size in sizes):
        raise ValueError(
            f"unpad: lengths are {tuple(lengths.shape)} for a batch of {len(padded)} and dims {dims}, wanted "
            "one for each row and dim."
        )
    samples = []
    for sample, size in zip(padded, sizes, strict=True):
        for dim, length in zip(each, size, strict=True):
            sample = sample.narrow(dim, 0 if side == "right" else sample.shape[dim] - length, length)
        samples.append(sample)
    return samples
