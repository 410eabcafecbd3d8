"""Where a collate writes a batch: in a torch worker large tensors are made in shared memory, to be sent as they are."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.data as torch_data
from torch import Tensor

# Smaller ones travel in the message itself: see `loaderkit.engine.message`.
_SHARED_FROM = 1 << 17  # bytes


def is_shared(size_bytes: int) -> bool:
    """Say whether a tensor of that size is to be made in shared memory."""
    info = torch_data.get_worker_info() if size_bytes > _SHARED_FROM else None
    return info is not None and not hasattr(info, "writes_into_slots")


def new_empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """Make a tensor of that shape, with the dtype and device of `like`, for a batch to be written into."""
    size_bytes = math.prod(shape) * like.itemsize
    if like.device.type != "cpu" or not is_shared(size_bytes):
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    make: Callable[[int], Any] = torch.UntypedStorage._new_shared  # as torch's default_collate does
    made: Tensor = torch.empty(0, dtype=like.dtype)
    return made.set_(make(size_bytes), 0, tuple(shape))  # type: ignore[call-overload,no-any-return]
