"""Columns in memory (or memory-mapped), read as one gather per column and batch."""

import hashlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from torch import Tensor

from loaderkit.datasets.base import check_index, is_frame
from loaderkit.datasets.combine import SubsetDataset
from loaderkit.datasets.memory.gather import TensorColumn, gather
from loaderkit.datasets.memory.shared import SharedList
from loaderkit.seeding.draws import DeclaresDraws, Draws
from loaderkit.seeding.samples import per_sample
from loaderkit.system.arrays import Int64Array

_PLAIN = (TensorColumn, np.ndarray, np.memmap, list, range, SharedList)  # columns that surely draw no random numbers
Columns = Any  # a Tensor, ndarray or sequence, or a tuple or dict of them, nested


class ArrayDataset(DeclaresDraws):
    """A dataset over columns with one length.

    Args:
        columns: A tensor (N, *), numpy array (N, *) (memory-mapped too) or
            sequence of N, or a tuple, list or dict of them, nested. A sample has
            the same structure; numpy rows come as arrays, and batches as tensors.
        transform: From a sample to a sample; its random numbers are the sample's
            own. Rows are then made one by one: without it a batch is one gather.

    Raises:
        ValueError: If there is no column, or the lengths differ.
    """

    def __init__(self, columns: Columns, *, transform: Callable[[Any], Any] | None = None) -> None:
        self._columns = _prepare(columns)
        self.transform = transform
        lengths = _lengths(self._columns, "")
        if not lengths:
            raise ValueError("ArrayDataset: no columns found, wanted at least one tensor, array or sequence.")
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name or 'column'} has {length:,}" for name, length in lengths.items())
            raise ValueError(f"ArrayDataset: {found}; wanted columns of one length.")
        self._length = next(iter(lengths.values()))
        kinds: list[type] = []
        _walk(self._columns, lambda column: kinds.append(type(column)))
        self._columns_draw_nothing = all(kind in _PLAIN for kind in kinds)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        sample = _walk(self._columns, lambda column: column[index])
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        rows = np.asarray(indices, dtype=np.int64)
        gathered = _walk(self._columns, lambda column: gather(column, rows))
        samples = [_walk(gathered, lambda column, row=row: column[row]) for row in range(len(rows))]
        return samples if self.transform is None else per_sample(self.transform, samples)

    def read_batch(self, indices: Int64Array) -> Any:
        """Return a batch of the columns' structure, each leaf a tensor (B, *) or, for sequences, a list."""
        return _walk(self._columns, lambda column: _read(column, indices))

    def _draws(self) -> Draws:
        return super()._draws() if self._columns_draw_nothing else Draws.ANYTHING

    def fingerprint(self) -> str:
        """Digest the columns' shapes and dtypes, and 16 rows spread over them."""
        rows = np.unique(np.linspace(0, max(0, self._length - 1), 16).astype(np.int64))[: self._length]
        digest = hashlib.blake2b(digest_size=8)

        def add(column: Any) -> None:
            picked = gather(column, rows)
            if isinstance(picked, Tensor):
                digest.update(f"{picked.dtype}{tuple(picked.shape)}".encode())
                picked = picked.contiguous().view(torch.uint8).numpy(force=True)  # numpy lacks some dtypes
            if isinstance(picked, np.ndarray) and picked.dtype != object:
                digest.update(f"{picked.dtype}{picked.shape}".encode() + np.ascontiguousarray(picked).tobytes())
            else:
                digest.update(repr(list(picked)).encode())

        _walk(self._columns, add)
        return digest.hexdigest()


def in_memory(dataset: Any) -> bool:
    """Say whether all samples surely lie in this process's memory, so that reading some opens nothing and draws nothing."""
    while type(dataset) in (SubsetDataset, torch_data.Subset):
        dataset = dataset.dataset
    if type(dataset) is ArrayDataset:
        columns: list[Any] = []
        _walk(dataset._columns, columns.append)
        return dataset.transform is None and all(map(_is_in_memory, columns))
    if type(dataset) is torch_data.TensorDataset:
        return all(map(_is_in_memory, dataset.tensors))
    return type(dataset) in (Tensor, np.ndarray) and _is_in_memory(dataset)


def _is_in_memory(column: Any) -> bool:
    if isinstance(column, TensorColumn):
        column = column.tensor
    if isinstance(column, Tensor):
        return column.is_cpu
    if not isinstance(column, np.ndarray):
        return type(column) in (list, range)
    while isinstance(column, np.ndarray):  # a view of a mapped file is an array, too
        column = column.base
    return not isinstance(column, mmap.mmap)


def _walk(columns: Columns, function: Any) -> Any:
    if isinstance(columns, dict):
        return {name: _walk(column, function) for name, column in columns.items()}
    if isinstance(columns, tuple):
        parts = [_walk(column, function) for column in columns]
        return type(columns)(*parts) if hasattr(columns, "_fields") else tuple(parts)
    return function(columns)


def _prepare(columns: Columns) -> Columns:
    """Keep arrays, wrap tensors; a list of columns is a tuple of them, other sequences are columns."""
    if isinstance(columns, str | bytes):
        raise TypeError(
            f"ArrayDataset: found the text {columns!r:.60}, wanted a tensor, a numpy array, a sequence, or a tuple or dict of "
            "them. For files: loaderkit.NpyDataset, ParquetDataset, CsvDataset and others."
        )
    if isinstance(columns, Mapping) and not is_frame(columns):
        return {name: _prepare(column) for name, column in columns.items()}
    if isinstance(columns, tuple) or (
        isinstance(columns, list) and any(isinstance(column, Tensor | np.ndarray) for column in columns)
    ):
        parts = [_prepare(column) for column in columns]
        return type(columns)(*parts) if hasattr(columns, "_fields") else tuple(parts)
    if isinstance(columns, Tensor | np.ndarray) and columns.ndim == 0:
        raise ValueError(f"ArrayDataset: found a column without rows, {columns!r}; wanted at least one axis.")
    if isinstance(columns, Tensor):
        return TensorColumn(columns)
    if is_frame(columns) or not hasattr(columns, "__len__") or not hasattr(columns, "__getitem__"):
        hint = " Of a frame: {name: frame[name].to_numpy() for name in frame}." if is_frame(columns) else ""
        raise TypeError(
            f"ArrayDataset: found a column of type {type(columns).__name__}, "
            f"wanted a tensor, a numpy array, a sequence, or a tuple or dict of them.{hint}"
        )
    return columns


def _lengths(columns: Columns, name: str) -> dict[str, int]:
    if isinstance(columns, dict):
        parts = columns.items()
    elif isinstance(columns, tuple):
        parts = dict(enumerate(columns)).items()
    else:
        return {name: len(columns)}
    return {
        key: length
        for part, column in parts
        for key, length in _lengths(column, f"{name}.{part}" if name else str(part)).items()
    }


def _read(column: Any, indices: Int64Array) -> Any:
    """Gather rows as the default collate would return them."""
    rows = gather(column, indices)
    if isinstance(rows, Tensor):
        return rows
    if isinstance(rows, np.ndarray) and rows.dtype.kind in "biufc":
        return torch.from_numpy(rows if rows.dtype.isnative else rows.astype(rows.dtype.newbyteorder("=")))
    if isinstance(rows, np.ndarray):
        return rows.tolist()
    if isinstance(rows, list) and rows and isinstance(rows[0], int | float | np.number | np.bool_):
        return torch.from_numpy(np.asarray(rows))  # float64 where one is a float, as the default collate has it
    return rows
