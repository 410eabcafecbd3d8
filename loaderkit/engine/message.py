"""How a batch of the torch engine leaves its worker: small tensors in the message, large ones in shared memory."""

import io
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

# Copying this much through a pipe is faster than a file descriptor and fresh pages for each tensor.
SMALL = 1 << 17  # bytes


def dump(batch: Any) -> bytes:
    """Return a batch as bytes, with file descriptors for its large tensors. It can be read once."""
    buffer = io.BytesIO()
    _Pickler(buffer, -1).dump(batch)
    return buffer.getvalue()


class _Pickler(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or not _is_plain(value):
            return NotImplemented
        content = bytearray(value.reshape(-1).view(torch.uint8).numpy().data) if value.numel() else bytearray()
        return _rebuild, (content, value.dtype, tuple(value.shape))


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.nbytes <= SMALL
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not vars(tensor)
    )


def _rebuild(content: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    make: Callable[..., Tensor] = torch.frombuffer
    return make(content, dtype=dtype).reshape(shape) if content else torch.empty(shape, dtype=dtype)
