"""A batch as bytes: its tensors and arrays side by side in a slot, its structure pickled."""

import io
import pickle
import struct
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.storage import TypedStorage, UntypedStorage

from loaderkit.engine.ring.slots import ALIGNMENT

Raw = np.ndarray[Any, np.dtype[np.uint8]]
_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
_COUNT = struct.Struct("<q")


class Written(NamedTuple):
    """A batch on its way."""

    structure: bytes
    size: int  # bytes in the slot or the image
    image: bytearray | None  # what would lie in the slot, where there was no memory for it


class _Writer(ForkingPickler):
    """Pickles a batch, but notes where the memory of tensors and arrays will lie; the same memory lies there once."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, True, self._note_buffer)
        self.parts: list[tuple[int, Raw]] = []
        self.buffers: list[int] = []  # start and size of each of pickle's own
        self.size = 0
        self._known: dict[int, tuple[Any, Any]] = {}  # by id, which the object itself keeps from being used again
        self._places: dict[tuple[int, int], int] = {}

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if kind is Tensor:
            if not _is_plain(value):
                return None
        elif (kind is not TypedStorage and kind is not UntypedStorage) or _untyped(value).device.type != "cpu":
            return None
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = value, (len(self._known), *self._describe(value))
        return known[1]

    def reducer_override(self, value: Any) -> Any:
        # By value, and not through torch's own shared memory; the tensors and storages within come by here again.
        if isinstance(value, Tensor) and value.device.type == "cpu":
            if type(value) is Tensor and value.layout in _SPARSE:
                return _rebuild_sparse, _sparse_parts(value)
            if value.layout == torch.strided and not value.is_quantized and not value.is_nested and _is_part(value):
                value = value.detach().clone().requires_grad_(value.requires_grad)  # a storage travels as a whole
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented

    def _describe(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, Tensor):
            shape, stride = tuple(value.shape), None
            if not value.is_contiguous():
                order = sorted(range(value.dim()), key=value.stride, reverse=True)
                dense = value.permute(order)
                value, stride = (dense, value.stride()) if dense.is_contiguous() else (value.contiguous(), None)
            raw = value.detach().reshape(-1).view(torch.uint8).numpy() if value.numel() else np.empty(0, np.uint8)
            return self._place(raw), value.dtype, shape, stride
        untyped = _untyped(value)
        raw = torch.empty(0, dtype=torch.uint8).set_(untyped).numpy()
        return self._place(raw), raw.size, None if value is untyped else value.dtype

    def _note_buffer(self, buffer: pickle.PickleBuffer) -> None:
        raw = np.frombuffer(buffer.raw(), np.uint8)
        self.buffers += self._place(raw), raw.size

    def _place(self, raw: Raw) -> int:
        if not raw.size:
            return 0
        where = raw.__array_interface__["data"][0], raw.size
        start = self._places.get(where)
        if start is None:
            start = self._places[where] = self.size
            self.parts.append((start, raw))
            self.size = -(-(start + raw.size) // ALIGNMENT) * ALIGNMENT
        return start


class _Reader(pickle.Unpickler):
    """Gives views of a slot's memory in the place of tensors and arrays."""

    def __init__(self, file: io.BytesIO, memory: Any, buffers: list[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._memory, self._known = memory, dict[int, Any]()

    def persistent_load(self, leaf: Any) -> Any:
        number, *about = leaf
        if number not in self._known:
            self._known[number] = self._storage(*about) if len(about) == 3 else self._tensor(*about)
        return self._known[number]

    def _tensor(self, start: int, dtype: torch.dtype, shape: tuple[int, ...], stride: Any) -> Tensor:
        size = dtype.itemsize
        for length in shape:
            size *= length
        if not size:
            return torch.empty(shape, dtype=dtype)
        flat = torch.from_numpy(np.frombuffer(self._memory, np.uint8, size, start)).view(dtype)
        return flat.view(shape) if stride is None else flat.as_strided(shape, stride)

    def _storage(self, start: int, size: int, dtype: torch.dtype | None) -> Any:
        raw = np.frombuffer(self._memory, np.uint8, size, start) if size else np.empty(0, np.uint8)
        untyped = torch.from_numpy(raw).untyped_storage()
        return untyped if dtype is None else TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def write(batch: Any, slots: Any, slot: int) -> Written:
    """Write a batch into a slot, or into an image of one if it is too large for a slot or there is no memory left."""
    pickled = io.BytesIO()
    writer = _Writer(pickled)
    writer.dump(batch)
    table = writer.buffers
    structure = struct.pack(f"<{1 + len(table)}q", len(table), *table) + pickled.getbuffer()
    image = None
    try:
        slots.reserve(slot, writer.size)
        memory = slots.bytes(slot, writer.size)
    except OSError:
        image = bytearray(writer.size)
        memory = np.frombuffer(image, np.uint8)
    for start, raw in writer.parts:
        memory[start : start + raw.size] = raw
    return Written(structure, writer.size, image)


def read(structure: bytes, memory: Any, *, own_buffers: bool = False) -> Any:
    """Return the batch of a structure; its tensors and arrays are views of the slot's memory.

    Args:
        structure: As `write` returned it.
        memory: The slot's, or that of an image.
        own_buffers: Copy arrays, and view tensors alone.
    """
    (count,) = _COUNT.unpack_from(structure)
    head = _COUNT.size * (1 + count)
    table = struct.unpack_from(f"<{count}q", structure, _COUNT.size)
    view = memoryview(memory).cast("B")
    buffers: list[Any] = [view[start : start + size] for start, size in zip(table[::2], table[1::2], strict=True)]
    if own_buffers:
        buffers = [bytearray(buffer) for buffer in buffers]
    return _Reader(io.BytesIO(memoryview(structure)[head:]), memory, buffers).load()


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
    made: Tensor = make(*parts, shape, requires_grad=requires_grad, check_invariants=False)
    return made


def _untyped(storage: Any) -> UntypedStorage:
    untyped: UntypedStorage = storage if isinstance(storage, UntypedStorage) else storage._untyped_storage
    return untyped


def _is_part(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() > tensor.nbytes
