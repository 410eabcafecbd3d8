"""What a worker process receives, if it is not forked: arrays and tensors in one file that all workers map, the rest as a pickle.

Without it each worker gets its own copy of each array, and a dataset of 250 tensors needs more open files than the fork server can
pass on.
"""

import io
import mmap
import os
import pickle
import tempfile
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from typing import Any, Never

import numpy as np
import torch
from torch import Tensor
from torch.storage import UntypedStorage

from loaderkit.system.tensor_pickling import lazy_parts, same

_SMALL = 512  # bytes of a buffer that stays in the pickle
_ALIGNED = 64  # bytes

_Place = tuple[int, int, bool]  # offset, size and whether it is read-only


class Parcel:
    """Sends a value to several processes that are being started: unpickling a Parcel returns the value.

    A worker that writes into an array or tensor changes its own copy, as after a fork. Workers share the memory until then.
    Tensors that are in shared memory stay shared. Others stay where they are: torch would move them there, and what else
    refers to their memory, such as `tensor.numpy()`, would refer to memory that is freed.

    If unpickling fails, it returns a `Broken` value. Its first use raises the error, and so the trainer sees it.
    """

    def __init__(self, content: object) -> None:
        self._content = content
        self._file: Any = None
        self._end = 0
        # By address and size of a buffer: its place in the file, and the buffer, which keeps the memory.
        self._places: dict[tuple[int, int], tuple[_Place, object]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        image, places = io.BytesIO(), []

        def place(buffer: pickle.PickleBuffer) -> bool:
            if (found := self._place(buffer)) is not None:
                places.append(found)
            return found is None  # true: it stays in the pickle

        _Pickler(image, pickle.HIGHEST_PROTOCOL, True, place).dump(self._content)
        file = None if self._file is None else reduction.DupFd(self._file.fileno())
        return _open, (image.getvalue(), file, places)

    def _place(self, buffer: pickle.PickleBuffer) -> _Place | None:
        try:
            memory = buffer.raw()
        except BufferError:  # not contiguous
            return None
        if memory.nbytes < _SMALL:
            return None
        key = np.frombuffer(memory, np.uint8).ctypes.data, memory.nbytes
        if key not in self._places:
            if self._file is None:
                self._file = _new_file()
            offset = -(-self._end // _ALIGNED) * _ALIGNED
            self._file.seek(offset)
            self._file.write(memory)
            self._end = offset + memory.nbytes
            self._places[key] = (offset, memory.nbytes, memory.readonly), buffer
        return self._places[key][0]

    def close(self) -> None:
        """Close the file. Processes that have received it keep it open."""
        self._places = {}
        if self._file is not None:
            self._file.close()
            self._file = None


class Broken:
    """A value that a worker could not unpickle. Any use of it raises the error."""

    def __init__(self, error: BaseException) -> None:
        vars(self)["_error"] = error

    def __getattr__(self, name: str) -> Never:
        if name.startswith("__"):
            raise AttributeError(name)
        error = vars(self)["_error"]
        raise RuntimeError(
            f"loader: a worker cannot unpickle what it received: {type(error).__name__}: {error}. It imports the main program and the "
            "modules again: define classes and functions at the top of a module, not under the main guard and not in a function."
        ) from error


class _Pickler(ForkingPickler):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._storages: dict[int, _Storage] = {}

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, Tensor):
            return lazy_parts(value)
        # torch pickles each CPU tensor as its storage and the tensor's offset, shape and strides in it.
        if (
            not isinstance(value, UntypedStorage)
            or value.device.type != "cpu"
            or value.is_shared()
            or not value.nbytes()
        ):
            return NotImplemented
        address = value.data_ptr()
        if address not in self._storages:
            self._storages[address] = _Storage(value)
        return same, (self._storages[address],)


class _Storage:
    """A storage, pickled once however many tensors are views of it."""

    def __init__(self, storage: UntypedStorage) -> None:
        self._storage = storage

    def __reduce__(self) -> tuple[object, ...]:
        content: Any = torch.empty(0, dtype=torch.uint8, device="cpu").set_(self._storage).numpy()
        return _storage_over, (pickle.PickleBuffer(content),)


def _storage_over(memory: object) -> UntypedStorage:
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def _new_file() -> object:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("loaderkit", os.MFD_CLOEXEC), "wb", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _open(image: bytes, file: Any, places: list[_Place]) -> object:
    try:
        return pickle.loads(image, buffers=_buffers(file, places))
    except Exception as error:
        return Broken(error)


def _buffers(file: Any, places: list[_Place]) -> list[memoryview]:
    if file is None:
        return []
    fd = file.detach()
    try:
        mapped = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    finally:
        os.close(fd)
    found = [mapped[offset : offset + size] for offset, size, _ in places]
    return [part.toreadonly() if readonly else part for part, (_, _, readonly) in zip(found, places, strict=True)]
