"""Rows of a column by their indices, by whatever copies them fastest."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.seeding import Int64Array

# Before torch 2.9 there is no index_select for unsigned integers of more than 8 bits.
_SAME_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_SHORT_ROW = 512  # bytes
_LARGE_BATCH = 32 << 20  # bytes


class TensorColumn:
    """A tensor (N, *) as a column.

    numpy copies short rows up to twice as fast as torch, and asks for huge pages where a batch is large; in between torch
    uses several cores.
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
        if self._for_numpy and (self._row_bytes <= _SHORT_ROW or self._row_bytes * len(indices) >= _LARGE_BATCH):
            # The array is made anew each time: torch moves a tensor's memory when a part of it leaves a worker.
            return torch.from_numpy(tensor.numpy().take(indices, 0))
        rows = torch.from_numpy(indices)
        rows = rows if tensor.is_cpu else rows.to(tensor.device)
        if tensor.dtype in _SAME_BITS:
            return tensor.view(_SAME_BITS[tensor.dtype]).index_select(0, rows).view(tensor.dtype)
        return tensor.index_select(0, rows)

    def __reduce__(self) -> Any:
        return TensorColumn, (self.tensor,)


def gather(column: Any, indices: Int64Array) -> Any:
    """Read rows (B, *) of a column. `column[indices]` takes several times as long where the column lies in one piece."""
    if isinstance(column, TensorColumn):
        return column.gather(indices)
    if isinstance(column, np.ndarray):
        # `take` would first copy the whole of a column that does not lie in one piece.
        whole = column.flags.c_contiguous and column.flags.aligned
        return np.asarray(column.take(indices, 0) if whole else column[indices])
    return [column[index] for index in indices.tolist()]
