"""Sequences of different lengths, joined end to end in one tensor."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.errors import ShardError
from loaderkit.system.arrays import Int64Array, native
from loaderkit.system.types import Array, DType

# For each of B sequences, the first token to take, and the end (exclusive), from the sequence's start: (B,) each.
Cut = tuple[Int64Array, Int64Array]


class Ends(Protocol):
    """The ends (N,) of N sequences: an int64 array, or an object that computes them when it is indexed."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Any: ...


class Ragged(NamedTuple):
    """A batch of sequences of different lengths, joined end to end.

    `torch.nested.nested_tensor_from_jagged(*ragged)` turns it into a nested tensor,
    and `values.split(offsets.diff().tolist())` into a list of sequences.

    Attributes:
        values: (T_1 + ... + T_B, *).
        offsets: (B + 1,) int64; sequence i is `values[offsets[i]:offsets[i + 1]]`.

    Examples:
        >>> batch = lk.Ragged(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3]))
        >>> batch.values.split(batch.offsets.diff().tolist())
        (tensor([1]), tensor([2, 3]))
    """

    values: Tensor
    offsets: Tensor


class Spans:
    """N sequences that follow each other in a contiguous array `flat` (T,). Sequence i ends at `ends[i]`.

    Both arrays may be memory-mapped. `name` is for errors.
    """

    def __init__(self, flat: Array, ends: Ends, name: str) -> None:
        self._ends, self._name, self._size, self._dtype = ends, name, len(flat), flat.dtype
        self._content = flat.data if flat.size else memoryview(b"")

    def batch(self, rows: Int64Array, cut: Cut | None = None) -> Ragged:
        """Return copies of sequences `rows` (B,), or of the part `cut` of each.

        Raise a ShardError if an end is out of range.
        """
        starts, ends = self._places(rows, cut)
        if len(rows) and (starts[1:] == ends[:-1]).all():  # neighbours: one copy takes half the time
            return _join([self._content[starts[0] : ends[-1]]], ends - starts, self._dtype)
        return _join(self._cut(starts, ends), ends - starts, self._dtype)

    def pieces(self, rows: Int64Array, cut: Cut | None = None) -> list[memoryview]:
        """Return sequences `rows` (B,), or the part `cut` of each, without copying.

        Raise a ShardError if an end is out of range.
        """
        return self._cut(*self._places(rows, cut))

    def sizes(self, rows: Int64Array) -> Int64Array:
        """Return the lengths (B,) of sequences `rows` (B,), in tokens; raise a ShardError if an end is out of range."""
        starts, ends = self._places(rows, None)
        return ends - starts

    def _places(self, rows: Int64Array, cut: Cut | None) -> tuple[Int64Array, Int64Array]:
        ends = self._ends[rows]
        starts = self._ends[rows - 1]
        starts[rows == 0] = 0
        if len(rows) and (starts.min() < 0 or ends.max() > self._size or (starts > ends).any()):
            wrong = ((starts < 0) | (starts > ends) | (ends > self._size)).argmax()
            raise ShardError(
                f"{self._name}: document {rows[wrong]} is from token {starts[wrong]:,} to {ends[wrong]:,} of {self._size:,}; "
                "wanted ends that do not decrease. They are damaged."
            )
        return (starts, ends) if cut is None else (np.minimum(starts + cut[0], ends), np.minimum(starts + cut[1], ends))

    def _cut(self, starts: Int64Array, ends: Int64Array) -> list[memoryview]:
        content = self._content
        return [content[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def join_parts(
    parts: Sequence[tuple[Spans, Int64Array, Int64Array]], size: int, dtype: DType, cut: Cut | None = None
) -> Ragged:
    """Return copies of `size` sequences from several arrays, or of the part `cut` of each, as one batch.

    Each of `parts` is an array of sequences, positions in the batch (P,), and the rows (P,) of the array for these
    positions.
    """
    if len(parts) == 1:
        return parts[0][0].batch(parts[0][2], cut)
    pieces: list[memoryview] = [memoryview(b"")] * size
    for spans, places, rows in parts:
        here = None if cut is None else (cut[0][places], cut[1][places])
        for place, piece in zip(places.tolist(), spans.pieces(rows, here), strict=True):
            pieces[place] = piece
    return _join(pieces, np.array(list(map(len, pieces)), dtype=np.int64), dtype)


def _join(pieces: list[memoryview], sizes: Int64Array, dtype: DType) -> Ragged:
    # Joining buffers takes half the time of np.concatenate, which makes an array of each piece first.
    values = np.frombuffer(bytearray().join(pieces), dtype=dtype)
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return Ragged(torch.from_numpy(native(values)), torch.from_numpy(offsets))
