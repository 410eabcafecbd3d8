"""Sequences of different lengths, joined end to end in one tensor."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from loaderkit.datasets.errors import ShardError
from loaderkit.system.arrays import Int64Array

Array = npt.NDArray[Any]


class Ragged(NamedTuple):
    """A batch of sequences of different lengths, end to end.

    `torch.nested.nested_tensor_from_jagged(*ragged)` turns it into a nested tensor,
    and `values.split(offsets.diff().tolist())` into a list of sequences.

    Args:
        values: (T_1 + ... + T_B, *).
        offsets: (B + 1,) int64; sequence i is `values[offsets[i]:offsets[i + 1]]`.

    Example:
        >>> batch = lk.Ragged(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3]))
        >>> batch.values.split(batch.offsets.diff().tolist())
        (tensor([1]), tensor([2, 3]))
    """

    values: Tensor
    offsets: Tensor


class Spans:
    """Sequences that follow each other in one array.

    Args:
        flat: (T,), contiguous; may be memory-mapped.
        ends: (N,) int64, the end of each sequence in `flat`; may be memory-mapped.
        name: The file's name, for errors.
    """

    def __init__(self, flat: Array, ends: Int64Array, name: str) -> None:
        self._ends, self._name, self._size = ends, name, len(flat)
        self._content = flat.data if flat.size else memoryview(b"")

    def pieces(self, rows: Int64Array) -> list[memoryview]:
        """Return sequences (B,) without copying them.

        Raises:
            ShardError: If an end is out of range.
        """
        ends = self._ends[rows]
        starts = np.where(rows > 0, self._ends[rows - 1], 0)
        is_wrong = (starts < 0) | (starts > ends) | (ends > self._size)
        if is_wrong.any():
            wrong = is_wrong.argmax()
            raise ShardError(
                f"{self._name}: document {rows[wrong]} is from token {starts[wrong]:,} to {ends[wrong]:,} of {self._size:,}; "
                "wanted ends that do not decrease. They are damaged."
            )
        content = self._content
        return [content[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def join_parts(parts: Iterable[tuple[Spans, Int64Array, Int64Array]], size: int, dtype: np.dtype[Any]) -> Ragged:
    """Copy sequences of several arrays into one batch.

    Args:
        parts: For each array: the array, places in the batch, and the sequences that go there.
        size: Number of sequences in the batch.
        dtype: The arrays' dtype.
    """
    pieces: list[memoryview] = [memoryview(b"")] * size
    for spans, places, rows in parts:
        for place, piece in zip(places.tolist(), spans.pieces(rows), strict=True):
            pieces[place] = piece
    # Joining buffers takes half the time of np.concatenate, which makes an array of each piece first.
    values = np.frombuffer(bytearray().join(pieces), dtype=dtype)
    native = values if dtype.isnative else values.astype(dtype.newbyteorder("="))
    offsets = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    return Ragged(torch.from_numpy(native), torch.from_numpy(offsets))
