"""Read samples from a chunk file of litdata: plain items, compressed items or frames of items (zstd), or Arrow rows.

An item is one encoded sample.
"""

import struct
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.indexes import group_places
from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.shards.listed import Bounds
from loaderkit.datasets.unpacking import unpack
from loaderkit.system.arrays import Int64Array
from loaderkit.system.types import Array

if TYPE_CHECKING:
    import pyarrow as pa

DecodeRow = Callable[[memoryview, int], object]  # makes a sample from an item's bytes and its row in the chunk

ARROW_MAGIC, FRAMED_MAGIC = b"LDARW01\0", b"LDFZ01\0\0"
ARROW_END = struct.Struct("<I8s")  # length of the Arrow file in bytes, magic
FRAMED_HEAD = struct.Struct("<8sHHIII")  # magic, version, flags, number of items, items in a frame, number of frames
FRAME = np.dtype([("first", "<u4"), ("items", "<u4"), ("start", "<u8"), ("packed", "<u4"), ("size", "<u4")])
_KEPT_BYTES = 1 << 26  # decompressed frames that an open chunk keeps
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

T = TypeVar("T")


class Chunk(ABC):
    """An open chunk, whose samples are read by their rows in it."""

    def __init__(self, file: LineFile) -> None:
        self.file = file

    def close(self) -> None:
        self.file.close()

    @abstractmethod
    def samples(self, rows: Int64Array, decode: DecodeRow) -> list[object]:
        """Return the samples at `rows` (B,). `decode` makes each from its item; Arrow rows are not passed to it."""


class PlainChunk(Chunk):
    """Items one after another; if `packed`, each item is compressed as a zstd frame of its own."""

    def __init__(self, file: LineFile, bounds: Bounds, *, packed: bool) -> None:
        super().__init__(file)
        self._bounds, self._packed = bounds, packed

    def samples(self, rows: Int64Array, decode: DecodeRow) -> list[object]:
        starts, ends = self._bounds[rows].tolist(), self._bounds[rows + 1].tolist()
        content, places = self.file.read_together(starts, ends)
        found = []
        for place, start, end, row in zip(places, starts, ends, rows.tolist(), strict=True):
            item = content[place : place + end - start]
            if self._packed:
                where = f"{self.file.shard}: sample {row}"
                item = memoryview(unpack("zstd", item, _zstd_size(item, where), where))
            found.append(decode(item, row))
        return found


class _Kept(Generic[T]):
    """A cache of the decompressed frames or batches that were used last, by number, of up to `_KEPT_BYTES`."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, tuple[int, T]] = OrderedDict()

    def get(self, number: int, make: Callable[[int], tuple[int, T]]) -> T:
        """Return the cached value of a number.

        If there is none, `make(number)` returns its size in bytes, and the value.
        """
        if number not in self._found:
            size, value = make(number)
            while self._found and sum(kept for kept, _ in self._found.values()) + size > _KEPT_BYTES:
                self._found.popitem(last=False)
            self._found[number] = size, value
        self._found.move_to_end(number)
        return self._found[number][1]


class FramedChunk(Chunk):
    """Zstd frames of several items each. Frames that were used last are kept decompressed."""

    def __init__(self, file: LineFile, bounds: Int64Array, frames: Array) -> None:
        super().__init__(file)
        self._bounds, self._frames = bounds, frames
        self._kept: _Kept[memoryview] = _Kept()

    def samples(self, rows: Int64Array, decode: DecodeRow) -> list[object]:
        found: list[object] = [None] * len(rows)
        numbers = np.searchsorted(self._frames["first"], rows, side="right") - 1
        for number, places in group_places(numbers):
            content = self._kept.get(number, self._unpack)
            shift = int(self._bounds[self._frames["first"][number]])
            for place in places.tolist():
                row = int(rows[place])
                start, end = (self._bounds[row : row + 2] - shift).tolist()
                found[place] = decode(content[start:end], row)
        return found

    def _unpack(self, number: int) -> tuple[int, memoryview]:
        start, packed, size = (int(self._frames[name][number]) for name in ("start", "packed", "size"))
        (content,) = self.file.read([start], [start + packed])
        return size, memoryview(unpack("zstd", content, size, f"{self.file.shard}: frame {number}"))


class ArrowChunk(Chunk):
    """Samples as rows of an Arrow file, which follows a chunk header without items.

    Batches that were used last are kept.
    """

    def __init__(self, file: LineFile, content: memoryview, samples: int) -> None:
        super().__init__(file)
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ImportError(
                f"{file.shard}: has Arrow rows, which need pyarrow: pip install '.[arrow]' in a checkout of loaderkit."
            ) from error
        self._kept: _Kept[pa.RecordBatch] = _Kept()
        self._samples = samples
        self._errors = (pa.ArrowException, ValueError, OSError, IndexError)
        try:
            source = pa.py_buffer(content)
            is_file = bytes(content[:6]) == b"ARROW1"
            options = pa.ipc.IpcReadOptions(use_threads=False)  # workers already run in parallel
            self._reader = (
                pa.ipc.open_file(source, options=options)
                if is_file
                else _Batches(list(pa.ipc.open_stream(source, options=options)))
            )
            self._each = max(1, self._reader.get_batch(0).num_rows)  # the last batch may have fewer rows
        except self._errors as error:
            raise _arrow_error(file.shard, str(error)) from error
        if self._reader.num_record_batches != -(-samples // self._each):
            raise _arrow_error(
                file.shard, f"{self._reader.num_record_batches:,} batches of {self._each:,} for {samples:,} samples"
            )

    def samples(self, rows: Int64Array, decode: DecodeRow) -> list[object]:
        found: list[object] = [None] * len(rows)
        for number, places in group_places(rows // self._each):
            try:
                batch = self._kept.get(number, self._read)
                values = batch.take((rows[places] - number * self._each).tolist()).to_pylist()
            except self._errors as error:
                raise _arrow_error(self.file.shard, str(error)) from error
            for place, value in zip(places.tolist(), values, strict=True):
                found[place] = value
        return found

    def _read(self, number: int) -> "tuple[int, pa.RecordBatch]":
        batch = self._reader.get_batch(number)
        wanted = min(self._each, self._samples - number * self._each)
        if batch.num_rows != wanted:
            raise ValueError(f"batch {number} has {batch.num_rows:,} rows, wanted {wanted:,}")
        batch.validate(full=True)  # Arrow does not check a file's offsets by itself
        return batch.nbytes, batch


def _arrow_error(shard: str, what: str) -> ShardError:
    return ShardError(f"{shard}: its Arrow rows can't be read: {what}. It is damaged.")


class _Batches:
    """Batches in memory, with the interface of pyarrow's reader of Arrow files."""

    def __init__(self, batches: "Sequence[pa.RecordBatch]") -> None:
        self._batches, self.num_record_batches = batches, len(batches)

    def get_batch(self, number: int) -> "pa.RecordBatch":
        return self._batches[number]


def _zstd_size(item: memoryview, where: str) -> int:
    """Return the decompressed size in bytes that the header of a zstd frame gives (RFC 8878, 3.1.1.1).

    Raises:
        ShardError: If the item is not a zstd frame, or its header gives no size.
    """
    if bytes(item[:4]) == _ZSTD_MAGIC and len(item) > 5:
        flags = item[4]
        single = flags >> 5 & 1
        width = (1 if single else 0, 2, 4, 8)[flags >> 6]
        start = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
        field = bytes(item[start : start + width])
        if width and len(field) == width:
            return int.from_bytes(field, "little") + (256 if width == 2 else 0)
    raise ShardError(f"{where}: not a frame of zstd that says its size. It is damaged.")
