"""Rows of several lengths, end to end in one tensor: a batch is one join of the pieces."""

from collections.abc import Iterable
from itertools import accumulate
from operator import gt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from loaderkit.datasets.index import ShardError
from loaderkit.seeding import Int64Array

Array = npt.NDArray[Any]


class Ragged(NamedTuple):
    """Sequences of several lengths, end to end.

    `torch.nested.nested_tensor_from_jagged(*ragged)` makes a nested tensor of it, and
    `values.split(offsets.diff().tolist())` the sequences.

    Args:
        values: (T_1 + ... + T_B, *).
        offsets: (B + 1,) int64; sequence i is values[offsets[i]:offsets[i + 1]].
    """

    values: Tensor
    offsets: Tensor


class Spans:
    """Sequences that lie one after another in an array, to be copied out many at a time.

    Args:
        flat: (T,), contiguous; may be mapped from a file.
        ends: (N,) int64, where they end; may be mapped as well.
        name: Of the file, for messages.
    """

    def __init__(self, flat: Array, ends: Int64Array, name: str) -> None:
        self.flat, self._ends, self._name = flat, ends, name
        self._content = flat.data if flat.size else memoryview(b"")

    def places(self, rows: Int64Array) -> tuple[list[int], list[int]]:
        """Return where sequences (B,) start and end.

        Raises:
            ShardError: If they can't lie there.
        """
        ends = np.take(self._ends, rows).tolist()
        starts = (np.take(self._ends, rows - 1, mode="wrap") * (rows > 0)).tolist()
        if starts and (min(starts) < 0 or max(ends) > len(self.flat) or any(map(gt, starts, ends))):
            size = len(self.flat)
            wrong = next(i for i, end in enumerate(ends) if not 0 <= starts[i] <= end <= size)
            raise ShardError(
                f"{self._name}: document {rows[wrong]} is from token {starts[wrong]:,} to {ends[wrong]:,} of {size:,}; "
                "wanted ends that do not decrease. They are damaged."
            )
        return starts, ends

    def pieces(self, rows: Int64Array) -> list[memoryview]:
        """Return sequences (B,), not copied.

        Raises:
            ShardError: If they can't lie there.
        """
        content = self._content
        return [content[start:end] for start, end in zip(*self.places(rows), strict=True)]

    def batch(self, rows: Int64Array) -> Ragged:
        """Copy sequences (B,)."""
        if len(rows) > 1 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
            starts, ends = self.places(rows)  # in order: one piece
            return _ragged([self._content[starts[0] : ends[-1]]], np.subtract(ends, starts[0]), self.flat.dtype)
        return join(self.pieces(rows), self.flat.dtype)


def join_parts(parts: Iterable[tuple[Spans, Int64Array, Int64Array]], size: int, dtype: np.dtype[Any]) -> Ragged:
    """Copy sequences of several arrays into one batch.

    Args:
        parts: For each array some places in the batch, and which of its sequences come there.
        size: Of the batch.
        dtype: Of the arrays.
    """
    pieces: list[memoryview] = [memoryview(b"")] * size
    for spans, places, rows in parts:
        for place, piece in zip(places.tolist(), spans.pieces(rows), strict=True):
            pieces[place] = piece
    return join(pieces, dtype)


def join(pieces: list[memoryview], dtype: np.dtype[Any]) -> Ragged:
    """Copy sequences (B,) into one batch."""
    return _ragged(pieces, np.array(list(accumulate(map(len, pieces))), dtype=np.int64), dtype)


def _ragged(pieces: list[memoryview], ends: Int64Array, dtype: np.dtype[Any]) -> Ragged:
    # Half the time of np.concatenate, which makes an array of each piece first.
    values = np.frombuffer(bytearray().join(pieces), dtype=dtype)
    offsets = np.empty(len(ends) + 1, dtype=np.int64)
    offsets[0], offsets[1:] = 0, ends
    native = values if dtype.isnative else values.astype(dtype.newbyteorder("="))
    return Ragged(torch.from_numpy(native), torch.from_numpy(offsets))
