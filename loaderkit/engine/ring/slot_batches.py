"""Write batches into slots and read them. The slot has the content of tensors and arrays; the rest is pickled apart."""

import io
import pickle
import struct
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np

from loaderkit.engine.ring.slots import ALIGNMENT, Slots
from loaderkit.system.containers import CONTAINERS, reduced
from loaderkit.system.tensor_pickling import TensorsByValue

_HEAD = struct.Struct("<q")  # bytes of the table
_PLACE = struct.Struct("<qq?")  # of a buffer: its start in the slot, its size, whether it is a tensor's or storage's


class Written(NamedTuple):
    """A batch that was written for another process."""

    structure: bytes  # the pickled batch without the content of its tensors and arrays, and a table of where that lies
    size: int  # bytes in the slot or the image
    image: bytearray | None  # the content of the slot, if the slot has no memory for it


def write_batch(batch: object, slots: Slots, slot: int) -> Written:
    """Write a batch into a slot. If it is too large for the slot, or memory runs out, write it into an image instead.

    An image is memory of this process that holds what the slot would hold.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(batch)
    places: dict[tuple[int, int], tuple[int, memoryview]] = {}  # memory that several tensors share is written once
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


def read_batch(structure: bytes, memory: Any, *, own_arrays: bool = False) -> object:
    """Return the batch, given its structure and the memory of its slot or image.

    Tensors and arrays are views of the memory.
    With `own_arrays`, arrays are copies, so only tensors keep the memory in use.
    """
    (table,) = _HEAD.unpack_from(structure)
    content = _HEAD.size + table
    view = memoryview(memory).cast("B")
    buffers: list[object] = []
    for start, size, of_tensor in _PLACE.iter_unpack(structure[_HEAD.size : content]):
        buffer = view[start : start + size]
        buffers.append(bytearray(buffer) if own_arrays and not of_tensor else buffer)
    return pickle.loads(memoryview(structure)[content:], buffers=buffers)


class _Pickler(TensorsByValue, ForkingPickler):
    """Pickles a batch without the content of its tensors, storages and arrays, which it collects in `buffers`."""

    def __init__(self, file: io.BytesIO) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        self.of_tensors: dict[int, int] = {}  # addresses of the buffers that are tensors' or storages', by id
        # A method in place of `append` would make a reference cycle, which keeps the batch until the garbage collector runs.
        super().__init__(file, pickle.HIGHEST_PROTOCOL, True, self.buffers.append)

    def reducer_override(self, value: object) -> Any:
        return reduced(value) if isinstance(value, CONTAINERS) else super().reducer_override(value)

    def _buffer(self, content: Any, address: int) -> pickle.PickleBuffer:
        buffer = super()._buffer(content, address)
        self.of_tensors[id(buffer)] = address
        return buffer
