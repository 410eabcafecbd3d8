"""A batch as bytes: its tensors and arrays side by side in a slot, its structure pickled."""

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.engine.ring.slot import ALIGNMENT, LARGEST, Slot

Leaf = tuple[int, torch.dtype | str, tuple[int, ...]]  # where in the slot, its dtype (numpy's as a string), its shape


class _Writer(ForkingPickler):
    """Pickles all but plain tensors and arrays, of which it notes where they will lie."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.leaves: list[tuple[int, np.ndarray[Any, Any]]] = []
        self.size = 0

    def persistent_id(self, value: Any) -> Leaf | None:
        if type(value) is Tensor and _is_plain(value):
            raw = value.detach().reshape(-1).view(torch.uint8).numpy() if value.numel() else np.empty(0, np.uint8)
            return self._place(raw), value.dtype, tuple(value.shape)
        if type(value) is np.ndarray and value.dtype.kind in "biufc" and value.flags.c_contiguous and value.ndim:
            return self._place(value.reshape(-1).view(np.uint8)), value.dtype.str, value.shape
        return None

    def _place(self, raw: np.ndarray[Any, Any]) -> int:
        start = self.size
        self.leaves.append((start, raw))
        self.size = -(-(start + raw.size) // ALIGNMENT) * ALIGNMENT
        return start


class _Reader(pickle.Unpickler):
    """Gives views of a slot's memory in the place of tensors and arrays."""

    def __init__(self, file: io.BytesIO, buffer: Any) -> None:
        super().__init__(file)
        self._buffer = buffer

    def persistent_load(self, leaf: Leaf) -> Any:
        start, dtype, shape = leaf
        if isinstance(dtype, str):
            kind = np.dtype(dtype)
            count = int(np.prod(shape, dtype=np.int64))
            return np.frombuffer(self._buffer, kind, count, start).reshape(shape) if count else np.empty(shape, kind)
        size = dtype.itemsize
        for length in shape:
            size *= length
        if not size:
            return torch.empty(shape, dtype=dtype)
        raw = torch.from_numpy(np.frombuffer(self._buffer, np.uint8, size, start))
        return raw.view(dtype).view(shape)


def write(batch: Any, slot: Slot) -> tuple[bytes, int]:
    """Write a batch into a slot; return its structure, and how many bytes of the slot it takes.

    Where it is too large for any slot, or there is no memory left, all of it is in the structure, and the number is -1.
    """
    structure = io.BytesIO()
    writer = _Writer(structure)
    writer.dump(batch)
    try:
        if writer.size > LARGEST:
            raise OSError("larger than a slot may be")
        memory = np.frombuffer(slot.mapping(writer.size, grow=True), np.uint8)
    except OSError:
        return pickle.dumps(batch, pickle.HIGHEST_PROTOCOL), -1
    for start, raw in writer.leaves:
        memory[start : start + raw.size] = raw
    return structure.getvalue(), writer.size


def read(structure: bytes, buffer: Any) -> Any:
    """Return the batch of a structure; its tensors and arrays are views of the slot's buffer."""
    return _Reader(io.BytesIO(structure), buffer).load()


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not vars(tensor)
    )
