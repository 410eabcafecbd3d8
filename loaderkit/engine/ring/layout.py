"""A batch as bytes: its tensors and arrays side by side in a slot, its structure pickled; a key as bytes."""

import functools
import io
import pickle
import struct
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.storage import TypedStorage, UntypedStorage

from loaderkit.engine.ring.outline import Leaf, build, find_places, pack_leaves, pack_node, take_apart, unpack_node
from loaderkit.engine.ring.slots import ALIGNMENT
from loaderkit.plan import BatchKey

Array = np.ndarray[Any, Any]
_HEAD = struct.Struct(
    "<qqq"
)  # sizes: of the leaves; of the outline, 0 if there is none; of the table of pickle's buffers
_BUFFER = struct.Struct("<qq")  # where one of pickle's own lies, and its size
_KEY = struct.Struct("<qqq")  # epoch, number of samples, number of bounds of rows (-1: none)
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


class Written(NamedTuple):
    """A batch on its way."""

    structure: bytes
    size: int  # bytes in the slot or the image
    image: bytearray | None  # what would lie in the slot, where there was no memory for it


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


def write(batch: Any, slots: Any, slot: int) -> Written:
    """Write a batch into a slot, or into an image of one if it is too large for a slot or there is no memory left."""
    known = take_apart(batch)
    if known is None:
        return _write_pickled(batch, slots, slot)
    where = find_places(known.contents)
    outline = pack_node(known.root)
    values = pickle.dumps(known.values, pickle.HIGHEST_PROTOCOL) if known.values else b""
    structure = b"".join((_HEAD.pack(len(where.leaves), len(outline), 0), where.leaves, outline, values))
    memory, image = _memory(slots, slot, where.size)
    if image is None:
        views, before = slots.views.get(slot, (None, None))
        if before is not where:
            views = _views(known.contents, where.starts, memory)
            slots.views[slot] = views, where
    else:
        views = _views(known.contents, where.starts, memory)
    for view, content in zip(views, known.contents, strict=True):
        view[...] = content
    return Written(structure, where.size, image)


def _write_pickled(batch: Any, slots: Any, slot: int) -> Written:
    pickled = io.BytesIO()
    writer = _Writer(pickled)
    writer.dump(batch)
    table = b"".join(_BUFFER.pack(*place) for place in writer.place_buffers())
    leaves = pack_leaves(tuple(writer.leaves))
    structure = b"".join((_HEAD.pack(len(leaves), 0, len(table)), leaves, table, pickled.getbuffer()))
    memory, image = _memory(slots, slot, writer.size)
    for start, content in writer.parts:
        np.ndarray(content.shape, content.dtype, memory, start)[...] = content
    return Written(structure, writer.size, image)


def _views(contents: list[Array], starts: list[int], memory: Any) -> list[Array]:
    return [
        np.ndarray(content.shape, content.dtype, memory, start if content.size else 0)
        for content, start in zip(contents, starts, strict=True)
    ]


def _memory(slots: Any, slot: int, size: int) -> tuple[Any, bytearray | None]:
    """Return a slot's memory, or that of an image and the image."""
    try:
        slots.reserve(slot, size)
        return slots.bytes(slot, size), None
    except OSError:
        image = bytearray(size)
        return np.frombuffer(image, np.uint8), image


def read(structure: bytes, memory: Any, *, own_buffers: bool = False) -> Any:
    """Return the batch of a structure; its tensors and arrays are views of the slot's memory.

    Args:
        structure: As `write` returned it.
        memory: The slot's, or that of an image.
        own_buffers: Copy arrays, and view tensors alone.
    """
    length, outline, table = _HEAD.unpack_from(structure)
    end = _HEAD.size + length
    known = _unpack_leaves(structure[_HEAD.size : end])
    if known.usual:  # nothing but calls of C: this runs for each tensor
        array: Any = np.ndarray
        leaves: list[Any] = list(
            map(torch.from_numpy, map(array, known.shapes, known.numbers, repeat(memory), known.starts))
        )
    else:
        leaves = [_leaf(memory, *leaf) for leaf in known.leaves]
    if outline:
        values = structure[end + outline :]
        return build(unpack_node(structure[end : end + outline]), leaves, pickle.loads(values) if values else [])
    buffers: list[Any] = []
    if table:
        view = memoryview(memory).cast("B")
        buffers = [view[start : start + size] for start, size in _BUFFER.iter_unpack(structure[end : end + table])]
    if own_buffers:
        buffers = [bytearray(buffer) for buffer in buffers]
    return _Reader(structure[end + table :], buffers, leaves).load()


class _Reader(pickle.Unpickler):
    """Puts leaves into a batch; with a method, as Python 3.13.0 lets no function be set on an Unpickler."""

    def __init__(self, structure: bytes, buffers: list[Any], leaves: list[Any]) -> None:
        super().__init__(io.BytesIO(structure), buffers=buffers)
        self._leaves = leaves

    def persistent_load(self, place: int) -> Any:
        return self._leaves[place]


def pack_key(key: BatchKey) -> bytes:
    """Return a key as bytes, in a fifth of the time that pickling it takes."""
    rows = key.rows
    positions, indices = np.asarray(key.positions, np.int64), np.asarray(key.indices, np.int64)
    head = _KEY.pack(key.epoch, len(positions), -1 if rows is None else len(rows))
    content = head + positions.tobytes() + indices.tobytes()
    return content if rows is None else content + np.asarray(rows, np.int64).tobytes()


def unpack_key(content: bytes) -> BatchKey:
    """Return the key of these bytes."""
    epoch, samples, bounds = _KEY.unpack_from(content)
    numbers = np.frombuffer(bytearray(content), np.int64, offset=_KEY.size)
    rows = None if bounds < 0 else numbers[2 * samples :]
    return BatchKey(epoch=epoch, positions=numbers[:samples], indices=numbers[samples : 2 * samples], rows=rows)


class _Leaves(NamedTuple):
    """The leaves of a batch, as they are read."""

    leaves: tuple[Leaf, ...]
    usual: bool  # all are contiguous tensors of numpy's dtypes that have elements: these
    starts: tuple[int, ...] = ()
    numbers: tuple[np.dtype[Any], ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()


@functools.lru_cache(maxsize=8)  # the batches of a loader have mostly the same
def _unpack_leaves(content: bytes) -> _Leaves:
    leaves: tuple[Leaf, ...] = pickle.loads(content)
    if not all(
        isinstance(numbers, str) and dtype is None and stride is None and 0 not in shape
        for _, numbers, dtype, shape, stride in leaves
    ):
        return _Leaves(leaves, False)
    starts, numbers, _, shapes, _ = zip(*leaves, strict=True) if leaves else ((),) * 5
    return _Leaves(leaves, True, starts, tuple(map(np.dtype, numbers)), shapes)


def _leaf(memory: Any, start: int, numbers: Any, dtype: torch.dtype | None, shape: Any, stride: Any) -> Any:
    """Make a tensor, or a storage, over a part of the memory; it is a storage of its own, so that saving it saves no more."""
    if type(numbers) is int:
        raw = np.frombuffer(memory, np.uint8, numbers, start) if numbers else np.empty(0, np.uint8)
        untyped = torch.from_numpy(raw).untyped_storage()
        return untyped if dtype is None else TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
    tensor = torch.from_numpy(np.empty(shape, numbers) if 0 in shape else np.ndarray(shape, numbers, memory, start))
    if dtype is not None:
        tensor = tensor.view(dtype)
    return tensor if stride is None else tensor.as_strided(shape, stride)


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
