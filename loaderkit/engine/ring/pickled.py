"""How a batch lies in a slot: pickled, with the memory of its tensors and arrays next to each other in the slot."""

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

from loaderkit.engine.ring.slots import ALIGNMENT, Slots

_HEAD = struct.Struct("<q")  # bytes of the table
_PLACE = struct.Struct("<qq?")  # of a buffer: its start in the slot, its size, whether a tensor or storage has it
_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


class Written(NamedTuple):
    """A batch on its way."""

    structure: bytes
    size: int  # bytes in the slot or the image
    image: bytearray | None  # the content of the slot, if the slot has no memory for it


def write_batch(batch: Any, slots: Slots, slot: int) -> Written:
    """Write a batch into a slot, or into an image of one if it is too large for the slot or memory runs out."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(batch)
    places: dict[tuple[int, int], tuple[int, memoryview]] = {}  # the same memory lies in the slot once
    table, size = [], 0
    for buffer in pickler.buffers:
        content, address = buffer.raw(), pickler.of_tensors.get(id(buffer))
        key = np.frombuffer(content, np.uint8).ctypes.data if address is None else address, content.nbytes
        if key not in places:
            places[key] = size, content
            size += -(-content.nbytes // ALIGNMENT) * ALIGNMENT
        table.append(_PLACE.pack(places[key][0], content.nbytes, address is not None))
    image = None
    try:
        slots.reserve(slot, size)
        memory: Any = memoryview(slots.bytes(slot, size).data)
    except OSError:
        image = bytearray(size)
        memory = memoryview(image)
    for start, content in places.values():
        memory[start : start + content.nbytes] = content
    structure = b"".join((_HEAD.pack(_PLACE.size * len(table)), *table, file.getbuffer()))
    return Written(structure, size, image)


def read_batch(structure: bytes, memory: Any, *, own_arrays: bool = False) -> Any:
    """Return the batch of a structure. Its tensors and arrays are views of the memory, which is the slot's or the image's.

    With `own_arrays`, arrays are copies: only tensors hold the memory.
    """
    (table,) = _HEAD.unpack_from(structure)
    content = _HEAD.size + table
    view = memoryview(memory).cast("B")
    buffers: list[Any] = []
    for start, size, of_tensor in _PLACE.iter_unpack(structure[_HEAD.size : content]):
        buffer = view[start : start + size]
        buffers.append(bytearray(buffer) if own_arrays and not of_tensor else buffer)
    return pickle.loads(memoryview(structure)[content:], buffers=buffers)


class _Pickler(ForkingPickler):
    """Pickles a batch but for the memory of its tensors, storages and arrays, which it collects."""

    def __init__(self, file: io.BytesIO) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        self.of_tensors: dict[int, int] = {}  # addresses of the buffers that are tensors' or storages', by id
        # A method in place of `append` would make a reference cycle, which keeps the batch until the garbage collector runs.
        super().__init__(file, pickle.HIGHEST_PROTOCOL, True, self.buffers.append)

    def reducer_override(self, value: Any) -> Any:
        # All by value: torch's own reductions use its own shared memory.
        if isinstance(value, Tensor) and value.is_cpu:
            dense = value.layout == torch.strided and not value.is_quantized and not value.is_nested
            if type(value) is Tensor and dense:
                return self._tensor(value)
            if type(value) is Tensor and value.layout in _SPARSE:
                return _make_sparse, _sparse_parts(value)
            if dense and value.untyped_storage().nbytes() > value.nbytes:
                value = value.detach().clone().requires_grad_(value.requires_grad)  # a storage travels as a whole
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if isinstance(value, UntypedStorage) and value.device.type == "cpu":
            content = torch.empty(0, dtype=torch.uint8).set_(value).numpy()
            return _make_storage, (self._buffer(content, value.data_ptr()),)
        if isinstance(value, TypedStorage):
            return _make_typed_storage, (value._untyped_storage, value.dtype)
        return NotImplemented

    def _tensor(self, value: Tensor) -> Any:
        plain, stride = value, None
        if value.requires_grad or value.is_conj() or value.is_neg():
            plain = value.detach().resolve_conj().resolve_neg()
        if not plain.is_contiguous():
            dense = plain.permute(sorted(range(plain.dim()), key=plain.stride, reverse=True))
            plain, stride = (dense, plain.stride()) if dense.is_contiguous() else (plain.contiguous(), None)
        try:
            content = plain.numpy()
        except TypeError:  # numpy lacks the dtype
            content = plain.reshape(-1).view(torch.uint8).numpy()
        more = (stride, value.requires_grad, vars(value)) if stride or value.requires_grad or vars(value) else ()
        return _make_tensor, (self._buffer(content, plain.data_ptr()), value.dtype, tuple(value.shape), *more)

    def _buffer(self, content: Any, address: int) -> pickle.PickleBuffer:
        buffer = pickle.PickleBuffer(content)
        self.of_tensors[id(buffer)] = address
        return buffer


def _make_tensor(
    memory: Any,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
    requires_grad: bool = False,
    attributes: dict[str, Any] | None = None,
) -> Tensor:
    """Make a tensor over memory. It has a storage of its own, so that saving it saves no more."""
    tensor: Tensor = torch.frombuffer(memory, dtype=dtype) if len(memory) else torch.empty(0, dtype=dtype)
    tensor = tensor.view(shape) if stride is None else tensor.as_strided(shape, stride)
    if requires_grad:
        tensor.requires_grad_()
    if attributes:
        vars(tensor).update(attributes)
    return tensor


def _make_storage(memory: Any) -> UntypedStorage:
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage() if len(memory) else UntypedStorage(0)  # type: ignore[no-untyped-call]


def _make_typed_storage(untyped: UntypedStorage, dtype: torch.dtype) -> TypedStorage:
    return TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


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


def _make_sparse(
    layout: torch.layout, shape: tuple[int, ...], coalesced: bool, requires_grad: bool, *parts: Tensor
) -> Tensor:
    if layout == torch.sparse_coo:
        make: Any = partial(torch.sparse_coo_tensor, is_coalesced=coalesced)
    else:
        make = partial(torch.sparse_compressed_tensor, layout=layout)
    # The parts were checked when the tensor was made. Torch 2.11 warns if only the call says so.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]
        made: Tensor = make(*parts, shape, requires_grad=requires_grad, check_invariants=False)
    return made
