"""Padding: samples of different sizes become one tensor, with lengths and mask on request."""

from collections.abc import Sequence
from operator import attrgetter, countOf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.collate.joining import pad, spreads_whole, valid, windows
from loaderkit.collate.rules import Pad, Side, difference, named
from loaderkit.collate.sequences import (
    Array,
    as_sequence,
    as_tensor,
    check_too_long,
    check_value,
    pieces_of,
    split,
)
from loaderkit.collate.stack import CollateError
from loaderkit.datasets.ragged import Ragged
from loaderkit.system.batch_memory import LARGE, empty_array
from loaderkit.system.memory import new_empty

_DTYPE, _NDIM = attrgetter("dtype"), attrgetter("ndim")
_TENSORS, _ARRAYS = {Tensor}, {np.ndarray}
_KNOWN = frozenset(map(np.dtype, "?bBhHiIlLefdFD"))  # to torch
# `torch.cat` refuses these beside another dtype, or makes floats of them: only for others it has to be looked for.
_UNPROMOTED = frozenset((torch.uint16, torch.uint32, torch.uint64))


def pad_field(values: Any, path: str, rule: Pad) -> tuple[Tensor, dict[str, Tensor]]:
    """Pad the B values of one field.

    Args:
        values: Tensors, arrays or lists of numbers; or a `Ragged`.
        path: Of the field, for messages.
        rule: How.

    Returns:
        The padded batch (B, *), and those of `lengths` and `mask` that were asked for.

    Raises:
        CollateError: If one has no such axis, the other axes or dtypes differ, or one is too long.
    """
    if rule.each_dim != (0,):
        return _pad_dims(values, path, rule)
    if rule.max_length is None and (found := _pad_plain(values, path, rule)) is not None:
        padded, lengths, there = found
        return padded, _extras(lengths, there, rule)
    pieces = pieces_of(values, path)
    if rule.max_length is not None:
        pieces.truncate(rule)
    check_value(rule.value, pieces.like.dtype, path)
    steps = _round_up(max(pieces.lengths), rule.each_multiple[0])
    lengths = np.fromiter(pieces.lengths, np.int64, len(pieces.lengths))
    there = valid(lengths, steps, rule.side)
    padded = pad(pieces, there, rule.value, rule.side)
    return _like_the_first(padded, values), _extras(lengths, there, rule)


def _pad_plain(values: Any, path: str, rule: Pad) -> tuple[Tensor, Array, Tensor] | None:
    """Pad plain tensors or arrays (T,) of numbers on the CPU; None if anything is unusual.

    By as few calls as can be: for 64 sequences what `pieces_of` and `pad` call beside takes as long as the work.

    Returns:
        The padded batch (B, T), the lengths (B,), and where the data is (B, T).
    """
    kinds = set(map(type, values)) if type(values) is list else None
    if kinds == _TENSORS:
        lengths = list(map(Tensor.numel, values))
    elif kinds == _ARRAYS and countOf(map(_NDIM, values), 1) == len(values):
        lengths = list(map(len, values))
    else:
        return None
    steps = _round_up(max(lengths), rule.each_multiple[0])
    shape = (len(lengths), steps)
    if not spreads_whole(shape, sum(lengths), values[0].itemsize):
        return None
    joined = _join_tensors(values) if kinds == _TENSORS else _join_arrays(values)
    if joined is None:
        return None
    sizes = np.array(lengths)
    there = windows(steps, rule.side)[sizes]
    filled = bool(rule.value) or shape[0] * steps * joined.itemsize >= LARGE  # else the C library clears faster
    rows = empty_array(shape, joined.dtype) if filled else np.zeros(shape, joined.dtype)
    padded = torch.from_numpy(rows)
    check_value(rule.value, padded.dtype, path)
    if filled:
        rows.fill(rule.value)
    rows[there] = joined
    return padded, sizes, torch.from_numpy(there)


def _join_tensors(items: list[Tensor]) -> Array | None:
    """Copy tensors (T,) end to end; None if they aren't such."""
    first = items[0]
    dtype = first.dtype
    if not first.is_cpu or dtype is torch.bfloat16:
        return None
    if dtype not in _UNPROMOTED and countOf(map(_DTYPE, items), dtype) < len(items):
        return None
    try:
        joined = torch.cat(items)
        return joined.numpy() if joined.dtype is dtype and joined.ndim == 1 else None
    except (RuntimeError, TypeError):  # other dtypes, axes or devices; gradients
        return None


def _join_arrays(items: list[Array]) -> Array | None:
    """Copy arrays (T,) end to end; None if they aren't such of one dtype that torch knows."""
    dtype = items[0].dtype
    if dtype not in _KNOWN or countOf(map(_DTYPE, items), dtype) < len(items):
        return None
    try:
        # A third of the time of np.concatenate.
        return np.frombuffer(b"".join(items), dtype)  # type: ignore[arg-type]
    except (BufferError, TypeError):  # not contiguous
        return None


def _extras(lengths: Array, there: Tensor, rule: Pad) -> dict[str, Tensor]:
    extras: dict[str, Tensor] = {}
    if rule.lengths:
        extras["lengths"] = torch.from_numpy(lengths)
    if rule.mask:
        extras["mask"] = _additive(there) if rule.mask == "additive" else there
    return extras


def _pad_dims(values: Any, path: str, rule: Pad) -> tuple[Tensor, dict[str, Tensor]]:
    """Pad any axes, sample by sample."""
    rows = _rows(values)
    items = [as_tensor(as_sequence(value, path, row, "PadCollate")) for row, value in enumerate(rows)]
    dims = _places(items, path, rule)
    sizes = [[item.shape[dim] for dim in dims] for item in items]
    check_too_long(sizes, rule, path)
    sizes = [[int(min(size, most)) for size, most in zip(row, rule.each_max, strict=True)] for row in sizes]
    columns: list[list[int]] = [list(column) for column in zip(*sizes, strict=True)]
    steps = [_round_up(max(column), step) for column, step in zip(columns, rule.each_multiple, strict=True)]
    shape = list(items[0].shape)
    for dim, most in zip(dims, steps, strict=True):
        shape[dim] = most
    check_value(rule.value, items[0].dtype, path)
    padded = new_empty((len(items), *shape), items[0])
    padded.fill_(rule.value)
    for place, (item, size) in enumerate(zip(items, sizes, strict=True)):
        row = padded[place]
        for dim, kept, most in zip(dims, size, steps, strict=True):
            cut = item.shape[dim] - kept if rule.too_long == "truncate_left" else 0
            item, row = item.narrow(dim, cut, kept), row.narrow(dim, 0 if rule.side == "right" else most - kept, kept)
        row.copy_(item)
    extras: dict[str, Tensor] = {}
    if rule.lengths:
        extras["lengths"] = torch.tensor(sizes) if len(dims) > 1 else torch.tensor(sizes)[:, 0]
    if rule.mask:
        mask = torch.ones((), dtype=torch.bool)
        for column, most in zip(columns, steps, strict=True):
            line = valid(np.array(column), most, rule.side)
            mask = mask[..., None] & line.view(len(items), *[1] * (mask.ndim - 1), most) if mask.ndim else line
        extras["mask"] = _additive(mask) if rule.mask == "additive" else mask
    return _like_the_first(padded, rows), extras


def _places(items: list[Tensor], path: str, rule: Pad) -> list[int]:
    """Return the varying axes, counted from the first, of samples that agree in all else."""
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
    others: list[object] = [tuple(n for dim, n in enumerate(item.shape) if dim not in dims) for item in items]
    if len(set(others)) > 1:
        raise difference(f"shape beside dims {rule.dims}", others, path, "PadCollate")
    return dims


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def _rows(values: Any) -> list[Any]:
    if isinstance(values, Ragged):
        return split(values.values, values.offsets.diff().tolist())
    return list(values)


def _additive(mask: Tensor) -> Tensor:
    added = new_empty(mask.shape, torch.empty(0))
    return added.fill_(-torch.inf).masked_fill_(mask, 0)


def _like_the_first(padded: Tensor, values: Any) -> Tensor:
    """Keep subclasses of Tensor, as stacking does."""
    if isinstance(values, (Ragged, Tensor)) or type(values[0]) is Tensor or not isinstance(values[0], Tensor):
        return padded
    kept = padded.as_subclass(type(values[0]))
    kept.__dict__.update(values[0].__dict__)
    return kept


def pad_sequences(
    sequences: Sequence[Any] | Ragged, *, value: float = 0, side: Side = "right", multiple_of: int = 1
) -> tuple[Tensor, Tensor]:
    """Stack sequences of different lengths into one padded batch.

    Args:
        sequences: B tensors, arrays or lists (T_i, *F) with one dtype and one F; or a `Ragged`.
        value: Written where a sequence has nothing.
        side: Where the padding goes.
        multiple_of: Round the padded length up to this many steps.

    Returns:
        padded (B, T, *F), where T is max(T_i) rounded up; lengths (B,) int64.

    Raises:
        ValueError: If there are no sequences, or they don't fit together.
    """
    if not len(sequences):
        raise ValueError("pad_sequences: no sequences given, wanted at least one.")
    rule = Pad(value=value, side=side, multiple_of=multiple_of, lengths=True)
    padded, extras = pad_field(sequences, "", rule)
    return padded, extras["lengths"]


def unpad(padded: Tensor, lengths: Tensor, *, side: Side = "right", dims: int | tuple[int, ...] = 0) -> list[Tensor]:
    """Return the samples of a padded batch, as views.

    Args:
        padded: (B, *).
        lengths: (B,), or (B, D) for several dims, as `Pad(lengths=True)` adds them.
        side: Where the padding is.
        dims: The axes of a sample that were padded.

    Raises:
        ValueError: If there is not a length for each row.
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
