"""Rows of the tensors in safetensors files: a header of JSON, then the tensors' bytes (huggingface/safetensors, README)."""

import json
import math
from collections.abc import Sequence
from typing import BinaryIO, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.index_finder import IndexFinder
from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import listed

_LENGTH = 8  # bytes of the header's length
_MOST = 100_000_000  # bytes of a header, the format's limit
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}


class Column(NamedTuple):
    """A tensor of a file, (rows, *shape), whose first byte is at `start` in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    rows: int
    start: int

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class _Open:
    """An open file with its columns."""

    def __init__(self, shard: str, file: BinaryIO, columns: dict[str, Column]) -> None:
        self.columns = columns
        self._file = LineFile(shard, file)

    def close(self) -> None:
        self._file.close()

    def read(self, column: Column, rows: list[int], out: Tensor) -> None:
        """Copy rows (B,) of a column into the bytes of `out` (B, row bytes)."""
        size = column.row_bytes
        if not size:
            return
        starts = [column.start + row * size for row in rows]
        content, places = self._file.read_together(starts, [start + size for start in starts])
        target = out.numpy()
        source = np.frombuffer(content, np.uint8)
        if places == list(range(places[0], places[0] + size * len(places), size)):
            target[:] = source[places[0] : places[0] + size * len(places)].reshape(len(places), size)
            return
        for row, place in enumerate(places):
            target[row] = source[place : place + size]


class SafetensorsDataset(ShardedDataset):
    """The rows of the tensors in safetensors files. Each tensor is a column.

    All tensors need the same size of the first axis. A sample is a dict of tensors (*), a batch a dict of tensors (B,
    *), in the dtypes of the file. Only the requested rows are read, also from a remote file.

    Args:
        urls: A path, folder, glob or URL, or a list of them. All files need the same columns.
        columns: Names of the tensors to read; by default all of the first file, in the order of their names.
        transform: Called with each row; its result replaces the row.
        max_open: Files that a process keeps open, with all its threads.
        storage: How to reach remote files, and where to keep copies.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a file is damaged, its tensors differ in the size of the first axis, or its columns differ from
            those of the first file.

    Examples:
        >>> from safetensors.torch import save_file
        >>> tensors = {"x": torch.arange(6.0).reshape(3, 2), "y": torch.tensor([7, 8, 9])}
        >>> save_file(tensors, "a.safetensors")
        >>> dataset = lk.SafetensorsDataset("a.safetensors")
        >>> dataset[1]
        {'x': tensor([2., 3.]), 'y': tensor(8)}
    """

    kind = "safetensors-1"
    suffixes: ClassVar[tuple[str, ...]] = (".safetensors",)
    keeps_index: ClassVar[bool] = False  # the header is one

    def __init__(
        self,
        urls: Urls,
        columns: Sequence[str] | None = None,
        *,
        transform: Transform | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
    ) -> None:
        self._given = listed("SafetensorsDataset", "columns", columns)
        self._layout: dict[str, tuple[torch.dtype, tuple[int, ...]]] | None = None
        super().__init__(urls, transform=transform, max_open=max_open, storage=storage)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._layout or ())

    def _columns(self, shard: str, file: BinaryIO) -> dict[str, Column]:
        """Return a file's chosen columns; raise a ShardError if they differ from those of the first file."""
        found = read_header(shard, file, self.files.stat(shard).size_bytes)
        names = sorted(found) if self._given is None else self._given
        if absent := [name for name in names if name not in found]:
            raise ShardError(f"{shard}: has no tensor {absent[0]!r}, wanted some of {sorted(found)}.")
        columns = {name: _column(shard, name, *found[name]) for name in names}
        sizes = {name: column.rows for name, column in columns.items()}
        if len(set(sizes.values())) > 1 or not sizes:
            raise ShardError(
                f"{shard}: the first dimensions are {sizes}, wanted one for all. Choose the tensors: columns=[...]."
            )
        layout = {name: (column.dtype, column.shape) for name, column in columns.items()}
        if self._layout is None:
            self._layout = layout
        if layout != self._layout:
            raise ShardError(
                f"{shard}: has {_shown(layout)}, wanted {_shown(self._layout)}, as {self.shards[0]} has. Choose columns that all files have "
                "alike: columns=[...]."
            )
        return columns

    def find_indexes(self, finder: IndexFinder) -> list[ShardIndex]:
        with self.files.open_head(self.shards[0]) as file:
            self._columns(self.shards[0], file)
        return super().find_indexes(finder)

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        with self.files.open_head(shard) as file:
            return next(iter(self._columns(shard, file).values())).rows, None

    def open(self, shard: str, index: ShardIndex) -> _Open:
        with self.files.open_head(shard) as file:
            columns = self._columns(shard, file)
        return _Open(shard, self.opened.open_soon(shard), columns)

    def read(self, handle: _Open, rows: Int64Array, index: ShardIndex) -> list[dict[str, Tensor]]:
        columns = self._empty(len(rows))
        self._fill(columns, handle, np.arange(len(rows)), rows)
        found = self._typed(columns)
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]

    def read_columns(self, indices: Sequence[int] | Int64Array) -> dict[str, Tensor]:
        """Return the rows at `indices` (B,) as a dict of tensors (B, *).

        Raises:
            IndexError: If an index is not in the dataset.
            ShardError: If a file has changed.
        """
        columns = self._empty(len(indices))
        for part, places, rows in self.to_read(indices):
            self._fill(columns, self.handle(part), places, rows)
        return self._typed(columns)

    def _empty(self, size: int) -> dict[str, Tensor]:
        """Return an empty uint8 tensor (B, row bytes) for each column, where B is `size`."""
        layout = self._layout or {}
        return {
            name: torch.empty((size, math.prod(shape) * dtype.itemsize), dtype=torch.uint8)
            for name, (dtype, shape) in layout.items()
        }

    @staticmethod
    def _fill(columns: dict[str, Tensor], handle: _Open, places: Int64Array, rows: Int64Array) -> None:
        """Copy the rows (R,) of an open file to the positions `places` (R,) in a batch's columns."""
        for name, content in columns.items():
            if len(places) == len(content) and bool((np.diff(places) == 1).all()):
                handle.read(handle.columns[name], rows.tolist(), content)
                continue
            some = torch.empty((len(rows), content.shape[1]), dtype=torch.uint8)
            handle.read(handle.columns[name], rows.tolist(), some)
            content[torch.from_numpy(places)] = some

    def _typed(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, (dtype, shape) in (self._layout or {}).items():
            content = columns[name]
            size = len(content), *shape
            found[name] = content.view(dtype).reshape(size) if content.numel() else torch.empty(size, dtype=dtype)
        return found

    def fingerprint(self) -> str:
        """Return the files' names, numbers of rows and columns."""
        return f"{super().fingerprint()} {_shown(self._layout or {})}"


def read_header(shard: str, file: BinaryIO, size_bytes: int) -> dict[str, tuple[str, list[int], int, int]]:
    """Return the dtype, shape, first byte and the byte after the last, of each tensor of a file by name.

    Raises:
        ShardError: If the file is cut or damaged.
    """
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH), "little")
    start = _LENGTH + length
    if size_bytes < _LENGTH or length > _MOST or start > size_bytes:
        raise ShardError(f"{shard}: has {size_bytes:,} bytes and a header of {length:,}: not a whole safetensors file.")
    try:
        header = json.loads(file.read(length))
        found = {}
        for name, one in header.items():
            if name == "__metadata__":
                continue
            shape = [int(size) for size in one["shape"]]
            first, last = (start + int(at) for at in one["data_offsets"])
            if not start <= first <= last or min(shape, default=0) < 0:
                raise ValueError(f"shape {shape}, bytes {first} to {last}")
            if last > size_bytes:
                raise ShardError(f"{shard}: ends at byte {size_bytes:,}, a tensor ends at {last:,}: the file is cut.")
            found[name] = str(one["dtype"]), shape, first, last
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ShardError):
            raise
        raise ShardError(
            f"{shard}: not a safetensors file, or its header is damaged: {type(error).__name__}: {error}."
        ) from error
    return found


def _column(shard: str, name: str, dtype: str, shape: list[int], first: int, last: int) -> Column:
    kind = _DTYPES.get(dtype)
    if kind is None or not shape:
        raise ShardError(
            f"{shard}: the tensor {name!r} has dtype {dtype} and shape {shape}, wanted rows in one of {sorted(_DTYPES)}. Leave it out: "
            "columns=[...]."
        )
    if math.prod(shape) * kind.itemsize != last - first:
        raise ShardError(
            f"{shard}: the tensor {name!r} of shape {shape} has {last - first:,} bytes: the file is damaged."
        )
    return Column(kind, tuple(shape[1:]), shape[0], first)


def _shown(layout: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> str:
    return ", ".join(
        f"{name} {str(dtype).removeprefix('torch.')}{list(shape)}" for name, (dtype, shape) in layout.items()
    )
