"""Where a collate writes a batch: in a torch worker large tensors are made in shared memory, to be sent as they are."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data as torch_data
from torch import Tensor

# Smaller ones travel in the message itself: see `loaderkit.engine.message`.
_LARGE = 1 << 17  # bytes
_BITS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64, 16: np.complex128}
_TORCH_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def is_shared(size_bytes: int) -> bool:
    """Say whether a tensor of that size is to be made in shared memory."""
    info = torch_data.get_worker_info() if size_bytes > _LARGE else None
    return info is not None and not hasattr(info, "writes_into_slots")


def new_empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """Make a tensor of that shape, with the dtype and device of `like`, for a batch to be written into."""
    size_bytes = math.prod(shape) * like.itemsize
    if like.device.type != "cpu" or not size_bytes:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if is_shared(size_bytes):
        make: Callable[[int], Any] = torch.UntypedStorage._new_shared  # as torch's default_collate does
        made: Tensor = torch.empty(0, dtype=like.dtype)
        return made.set_(make(size_bytes), 0, tuple(shape))  # type: ignore[call-overload,no-any-return]
    # torch.empty aligns tensors by hand, and the C library gives their memory back each time: 40 page faults for 256 x 512
    # int64 in batches of several lengths, which take four times as long as to fill it.
    return torch.from_numpy(np.empty(shape, dtype=_BITS[like.itemsize])).view(like.dtype)


def as_bits(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array of what has its size, since numpy does not know all dtypes of torch."""
    array: npt.NDArray[Any] = tensor.view(_TORCH_BITS[tensor.itemsize]).numpy()
    return array
