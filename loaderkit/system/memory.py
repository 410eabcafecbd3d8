"""Where a collate writes a batch: what is large in memory that is used again, or by a torch worker in shared memory, to be sent so."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data as torch_data
from torch import Tensor

from loaderkit.system.batch_memory import LARGE, current, empty_array

Array = npt.NDArray[Any]

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
    return torch.from_numpy(empty_array(shape, _BITS[like.itemsize])).view(like.dtype)


def new_full(shape: Sequence[int], like: Array, dtype: torch.dtype, value: float) -> tuple[Tensor, Array]:
    """Make a tensor on the CPU that holds `value` all over.

    Args:
        shape: Of the tensor.
        like: An array as `as_array` makes it of tensors of that dtype.
        dtype: Of the tensor.
        value: To fill it with.

    Returns:
        The tensor, and an array of the same memory.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    if is_shared(size_bytes) or (size_bytes >= LARGE and current() is not None):
        tensor = new_empty(shape, torch.empty(0, dtype=dtype))
        array = as_array(tensor)
        array.fill(bits_of(value, dtype))
        return tensor, array
    # The C library clears memory faster than numpy fills it.
    array = np.full(shape, bits_of(value, dtype)) if value else np.zeros(shape, like.dtype)
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype is dtype else tensor.view(dtype), array


@lru_cache(maxsize=64)
def bits_of(value: float, dtype: torch.dtype) -> Any:
    """Return a value as `as_array` shows it in tensors of that dtype."""
    return as_array(torch.full((1,), value, dtype=dtype))[0]


def as_array(tensor: Tensor) -> Array:
    """Return a tensor as an array: of its bits, where numpy does not know its dtype."""
    try:
        array: Array = tensor.numpy()
    except TypeError:  # bfloat16
        array = tensor.view(_TORCH_BITS[tensor.itemsize]).numpy()
    return array
