"""Rows of a column by their indices, by whatever copies them fastest."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from loaderkit.system.arrays import Int64Array
from loaderkit.system.batch_memory import LARGE, empty_array
from loaderkit.system.memory import new_empty

# Before torch 2.9 there is no index_select for unsigned integers of more than 8 bits.
_SAME_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_SHORT_ROW = 512  # bytes


class TensorColumn:
    """A tensor (N, *) as a column.

    numpy copies short rows up to twice as fast as torch, which uses several cores for longer ones.
    """

    __slots__ = ("_for_numpy", "_row_bytes", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._row_bytes = tensor[:1].numel() * tensor.element_size()
        self._for_numpy = type(tensor) is Tensor and tensor.is_cpu and tensor.is_contiguous() and tensor.numel() > 0
        try:
            tensor[:0].numpy()
        except (TypeError, RuntimeError):  # a dtype that numpy lacks, or one that needs gradients
            self._for_numpy = False

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, index: int) -> Tensor:
        return self.tensor[index]

    def gather(self, indices: Int64Array) -> Tensor:
        """Return the rows (B, *) at indices (B,)."""
        tensor = self.tensor
        large = self._for_numpy and self._row_bytes * len(indices) >= LARGE
        if self._for_numpy and self._row_bytes <= _SHORT_ROW and not large:
            # The array is made anew each time: torch moves a tensor's memory when a part of it leaves a worker.
            return torch.from_numpy(tensor.numpy().take(indices, 0))
        rows = torch.from_numpy(indices)
        rows = rows if tensor.is_cpu else rows.to(tensor.device)
        bits = tensor.view(_SAME_BITS[tensor.dtype]) if tensor.dtype in _SAME_BITS else tensor
        out = new_empty((len(indices), *tensor.shape[1:]), bits) if large else None
        found = torch.index_select(bits, 0, rows, out=out)
        return found if bits is tensor else found.view(tensor.dtype)

    def __reduce__(self) -> Any:
        return TensorColumn, (self.tensor,)


def gather(column: Any, indices: Int64Array) -> Any:
    """Read rows (B, *) of a column. `column[indices]` takes several times as long where the column lies in one piece."""
    if isinstance(column, TensorColumn):
        return column.gather(indices)
    if isinstance(column, np.ndarray):
        # `take` would first copy the whole of a column that does not lie in one piece.
        whole = column.flags.c_contiguous and column.flags.aligned
        return np.asarray(take(column, indices) if whole else column[indices])
    return [column[index] for index in indices.tolist()]


def take(array: npt.NDArray[Any], rows: Int64Array) -> npt.NDArray[Any]:
    """Read rows (B, *) of an array in one piece."""
    if len(rows) * array.strides[0] < LARGE or array.dtype.kind not in "biufc":
        return array.take(rows, 0)
    if rows.min() < 0 or rows.max() >= len(array):
        return array.take(rows, 0)
    # With its check of each index numpy would write to memory of its own first.
    return array.take(rows, 0, out=empty_array((len(rows), *array.shape[1:]), array.dtype), mode="clip")
