"""A batch that is pickled: whatever it holds arrives as it was, and the memory of its tensors and arrays lies in the slot."""

import io
import pickle
import struct
from collections.abc import Iterator
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.storage import TypedStorage, UntypedStorage

from loaderkit.engine.ring.leaves import Leaf
from loaderkit.engine.ring.slots import ALIGNMENT

Array = np.ndarray[Any, Any]
_BUFFER = struct.Struct("<qq")  # where one of pickle's own lies, and its size
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


class Pickled(NamedTuple):
    """A batch that was pickled."""

    leaves: tuple[Leaf, ...]
    parts: list[tuple[int, Array]]  # what is to lie in the slot, and where
    size: int  # bytes, of all
    table: bytes  # where pickle's own buffers lie
    content: bytes


def dump(batch: Any) -> Pickled:
    """Pickle a batch, but for the memory of its tensors and arrays."""
    file = io.BytesIO()
    writer = _Writer(file)
    writer.dump(batch)
    table = b"".join(_BUFFER.pack(*place) for place in writer.place_buffers())
    return Pickled(tuple(writer.leaves), writer.parts, writer.size, table, file.getvalue())


def load(content: bytes, table: bytes, leaves: list[Any], memory: Any, *, own_buffers: bool) -> Any:
    """Return the batch.

    Args:
        content: Pickled.
        table: Of pickle's own buffers.
        leaves: Tensors and storages.
        memory: Where those and the buffers lie.
        own_buffers: Whether to copy the latter.
    """
    buffers: list[Any] = []
    if table:
        view = memoryview(memory).cast("B")
        buffers = [view[start : start + size] for start, size in _BUFFER.iter_unpack(table)]
    if own_buffers:
        buffers = [bytearray(buffer) for buffer in buffers]
    return _Reader(content, buffers, leaves).load()


class _Writer(ForkingPickler):
    """Pickles a batch, but notes where the memory of tensors and arrays will lie; the same memory lies there once."""

    def __init__(self, file: io.BytesIO) -> None:
        self._buffers: list[pickle.PickleBuffer] = []
        # Not by a method: the batch would live until the garbage collector finds the circle.
        super().__init__(file, pickle.HIGHEST_PROTOCOL, True, self._buffers.append)
        self.leaves: list[Leaf] = []
        self.parts: list[tuple[int, Array]] = []
        self.size = 0
        self._known: dict[int, tuple[Any, int]] = {}  # by id, which the object itself keeps from being used again
        self._places: dict[tuple[int, int], int] = {}

    def persistent_id(self, value: Any) -> int | None:
        kind = type(value)
        if kind is not Tensor and kind is not TypedStorage and kind is not UntypedStorage:
            return None
        known = self._known.get(id(value))
        if known is None:
            leaf = self._tensor(value) if kind is Tensor else self._storage(value)
            if leaf is None:
                return None
            known = self._known[id(value)] = value, len(self.leaves)
            self.leaves.append(leaf)
        return known[1]

    def reducer_override(self, value: Any) -> Any:
        # By value, and not through torch's own shared memory; the tensors and storages within come by here again.
        if isinstance(value, Tensor) and value.device.type == "cpu":
            if type(value) is Tensor and value.layout in _SPARSE:
                return _rebuild_sparse, _sparse_parts(value)
            if type(value) is Tensor and value.dtype in _UNSIGNED and value.layout == torch.strided:
                return _rebuild_unsigned, (value.view(_SAME_SIZE[value.itemsize]), value.dtype, vars(value))
            if value.layout == torch.strided and not value.is_quantized and not value.is_nested and _is_part(value):
                value = value.detach().clone().requires_grad_(value.requires_grad)  # a storage travels as a whole
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented

    def _tensor(self, value: Tensor) -> Leaf | None:
        if vars(value) or value.is_nested:
            return None
        shape, stride, dtype = tuple(value.shape), None, None
        try:
            content = value.numpy()
        except (TypeError, RuntimeError):  # it is more than its numbers, not on the host, or numpy lacks the dtype
            if not _is_plain(value):
                return None
            dtype, value = value.dtype, value.view(_SAME_SIZE[value.itemsize])
            content = value.numpy()
        if not content.flags.c_contiguous:
            order = sorted(range(value.dim()), key=value.stride, reverse=True)
            dense = value.permute(order)
            value, stride = (dense, value.stride()) if dense.is_contiguous() else (value.contiguous(), None)
            content = value.numpy()
        return self._place(content, value.data_ptr()), content.dtype.str, dtype, shape, stride

    def _storage(self, value: Any) -> Leaf | None:
        untyped = _untyped(value)
        if untyped.device.type != "cpu":
            return None
        raw = torch.empty(0, dtype=torch.uint8).set_(untyped).numpy()
        return self._place(raw, untyped.data_ptr()), raw.size, None if value is untyped else value.dtype, (), None

    def place_buffers(self) -> Iterator[tuple[int, int]]:
        """Find places for pickle's own buffers; yield where each lies, and its size."""
        for buffer in self._buffers:
            raw = np.frombuffer(buffer.raw(), np.uint8)
            yield self._place(raw, raw.ctypes.data), raw.size

    def _place(self, content: Array, address: int) -> int:
        if not content.size:
            return 0
        where = address, content.nbytes
        start = self._places.get(where)
        if start is None:
            start = self._places[where] = self.size
            self.parts.append((start, content))
            self.size = -(-(start + content.nbytes) // ALIGNMENT) * ALIGNMENT
        return start


class _Reader(pickle.Unpickler):
    """Puts leaves into a batch; with a method, as Python 3.13.0 lets no function be set on an Unpickler."""

    def __init__(self, structure: bytes, buffers: list[Any], leaves: list[Any]) -> None:
        super().__init__(io.BytesIO(structure), buffers=buffers)
        self._leaves = leaves

    def persistent_load(self, place: int) -> Any:
        return self._leaves[place]


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not vars(tensor)
    )


def _sparse_parts(tensor: Tensor) -> tuple[Any, ...]:
    # Not by torch's own reduction: it keeps what it rebuilds until the next `torch.load`.
    parts: tuple[Tensor, ...]
    if tensor.layout == torch.sparse_coo:
        parts = (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    else:
        parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    coalesced = tensor.layout == torch.sparse_coo and tensor.is_coalesced()
    return tensor.layout, tuple(tensor.shape), coalesced, tensor.requires_grad, *(part.detach() for part in parts)


def _rebuild_sparse(
    layout: torch.layout, shape: tuple[int, ...], coalesced: bool, requires_grad: bool, *parts: Tensor
) -> Tensor:
    if layout == torch.sparse_coo:
        make: Any = partial(torch.sparse_coo_tensor, is_coalesced=coalesced)
    else:
        make = partial(torch.sparse_compressed_tensor, layout=layout)
    # They were checked, or not, where the tensor was made. Torch 2.11 warns where a call alone says so.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        made: Tensor = make(*parts, shape, requires_grad=requires_grad, check_invariants=False)
    return made


def _rebuild_unsigned(signed: Tensor, dtype: torch.dtype, attributes: dict[str, Any]) -> Tensor:
    # torch's own way to rebuild these fails for storages that don't know their dtype.
    tensor = signed.view(dtype)
    vars(tensor).update(attributes)
    return tensor


def _untyped(storage: Any) -> UntypedStorage:
    untyped: UntypedStorage = storage if isinstance(storage, UntypedStorage) else storage._untyped_storage
    return untyped


def _is_part(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() > tensor.nbytes
