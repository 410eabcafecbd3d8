"""A dataset over columns in memory or memory-mapped. A batch takes one gather per column."""

import hashlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic

import numpy as np
import torch
import torch.utils.data as torch_data
from torch import Tensor
from typing_extensions import TypeVar

from loaderkit.datasets.base import as_rows, check_index
from loaderkit.datasets.combine import SubsetDataset
from loaderkit.datasets.memory.shared import SharedList
from loaderkit.sampling.fingerprint import spread_rows
from loaderkit.seeding.draws import Declares
from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.arrays import Int64Array, native
from loaderkit.system.batch_memory import LARGE, empty_array, new_empty
from loaderkit.system.overrides import is_map_style
from loaderkit.system.tables import by_position, frame_way_out, is_frame
from loaderkit.system.types import Array

Columns = Any  # a tensor, array or sequence, or a tuple or dict of them, nested

# Before torch 2.9, index_select does not work for unsigned integers of more than 8 bits.
_SAME_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_SHORT_ROW = 512  # bytes; numpy copies such rows up to twice as fast as torch, which uses several cores for longer ones


Sample = TypeVar("Sample", default=Any)


class ArrayDataset(Declares, Generic[Sample]):
    """A dataset over columns of equal length, such as tensors and numpy arrays.

    Args:
        columns: A tensor (N, *), a numpy array (N, *), which may be memory-mapped, or a
            sequence of N values; or a tuple, list or dict of these, which may be nested. A
            sample has the same structure, with a tuple for a list of columns.
        transform: Called with each sample. Without it, a batch is one gather per column.

    Raises:
        ValueError: If there is no column, or the lengths differ.
        TypeError: If a column is not of one of these types.

    Examples:
        >>> data = lk.ArrayDataset({"x": torch.arange(12).reshape(6, 2), "y": np.arange(6)})
        >>> data[1]
        {'x': tensor([2, 3]), 'y': np.int64(1)}
        >>> batch = next(iter(lk.Loader(data, batch_size=4)))
        >>> batch["x"].shape, batch["y"].dtype
        (torch.Size([4, 2]), torch.int64)
    """

    def __init__(self, columns: Columns, *, transform: Callable[[Any], Sample] | None = None) -> None:
        self._columns = _prepare(columns)
        self.transform = transform
        lengths = [(name, len(leaf)) for name, leaf in _named_leaves(self._columns)]
        if not lengths:
            raise ValueError("ArrayDataset: no columns found, wanted at least one tensor, array or sequence.")
        if len({length for _, length in lengths}) > 1:
            found = ", ".join(f"{name} has {length:,}" for name, length in lengths)
            raise ValueError(f"ArrayDataset: {found}; wanted columns of one length.")
        self._length = lengths[0][1]
        if all(map(_is_numbers, _leaves(self._columns))):
            self.read_columns = None  # type: ignore[assignment, method-assign]  # `read_batch` does as much
        else:
            self.read_batch = None  # type: ignore[assignment, method-assign]  # the Loader then collates the values

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        check_index(self, index)
        sample: Any = _map_columns(self._columns, lambda column: column[index])
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        rows = as_rows(self, indices)
        gathered = _map_columns(self._columns, lambda column: _gather(column, rows))
        samples = [_map_columns(gathered, itemgetter(row)) for row in range(len(rows))]
        return samples if self.transform is None else per_sample(self.transform, samples)

    def read_batch(self, indices: Int64Array) -> Any:
        """Return a batch with the structure of the columns: tensors (B, *)."""
        return _map_columns(self._columns, lambda column: _as_tensor(_gather(column, indices)))

    def read_columns(self, indices: Sequence[int] | Int64Array) -> Any:
        """Return samples as columns in the structure of a sample: tensors and arrays (B, *), and lists of B values."""
        rows = as_rows(self, indices)
        return _map_columns(self._columns, lambda column: _gather(column, rows))

    def _parts(self) -> list[object]:
        # Reading a sequence of another class may draw.
        plain = (_TensorColumn, np.ndarray, np.memmap, list, range, SharedList)
        return [*super()._parts(), *(leaf for leaf in _leaves(self._columns) if type(leaf) not in plain)]

    def fingerprint(self) -> str:
        """Return a digest of the columns' shapes and dtypes, and of 16 rows spread over them."""
        rows = spread_rows(self._length)
        digest = hashlib.blake2b(digest_size=8)
        for column in _leaves(self._columns):
            picked = _gather(column, rows)
            if isinstance(picked, Tensor):
                digest.update(f"{picked.dtype}{tuple(picked.shape)}".encode())
                picked = picked.contiguous().view(torch.uint8).numpy(force=True)  # numpy lacks some dtypes
            if isinstance(picked, np.ndarray) and picked.dtype != object:
                digest.update(f"{picked.dtype}{picked.shape}".encode() + np.ascontiguousarray(picked).tobytes())
            else:
                digest.update(repr(list(picked)).encode())
        return digest.hexdigest()


def in_memory(dataset: Any) -> bool:
    """Return whether all samples are in this process's memory, and reading them draws no random numbers."""
    while type(dataset) in (SubsetDataset, torch_data.Subset):
        dataset = dataset.dataset
    if type(dataset) is ArrayDataset:
        return dataset.transform is None and all(map(_is_in_memory, _leaves(dataset._columns)))
    if type(dataset) is torch_data.TensorDataset:
        return all(map(_is_in_memory, dataset.tensors))
    return type(dataset) in (Tensor, np.ndarray) and _is_in_memory(dataset)


def take(array: Array, rows: Int64Array) -> Array:
    """Return the rows (B, *) of a contiguous array at `rows` (B,); raise an IndexError if a row is out of range."""
    is_large = len(rows) * array.strides[0] >= LARGE and array.dtype.kind in "biufc"
    if not is_large or rows.view(np.uint64).max() >= len(array):  # as unsigned, a negative row is large
        return array.take(rows, 0)
    # mode="clip", as the indices are checked above: in the mode that checks them, numpy buffers `out` and copies twice.
    return array.take(rows, 0, out=empty_array((len(rows), *array.shape[1:]), array.dtype), mode="clip")


class _TensorColumn:
    """A tensor (N, *) as a column."""

    __slots__ = ("_by_numpy", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        is_short = tensor[:1].numel() * tensor.element_size() <= _SHORT_ROW
        self._by_numpy = is_short and _is_plain(tensor) and tensor.is_contiguous() and tensor.numel() > 0
        try:
            tensor[:0].numpy()
        except (TypeError, RuntimeError):  # numpy lacks the dtype, or the tensor requires gradients
            self._by_numpy = False

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, index: int) -> Tensor:
        return self.tensor[index]

    def gather(self, indices: Int64Array) -> Tensor:
        """Return the rows (B, *) at `indices` (B,)."""
        tensor = self.tensor
        if self._by_numpy:
            # Do not keep this view: torch moves the tensor's memory if a part of it leaves a worker.
            return torch.from_numpy(tensor.numpy().take(indices, 0))
        bits = tensor.view(_SAME_BITS[tensor.dtype]) if tensor.dtype in _SAME_BITS else tensor
        out = new_empty((len(indices), *tensor.shape[1:]), bits) if _is_plain(tensor) else None
        found = torch.index_select(bits, 0, torch.from_numpy(indices).to(tensor.device), out=out)
        return found if bits is tensor else found.view(tensor.dtype)


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.is_cpu and not tensor.requires_grad


def _gather(column: Any, indices: Int64Array) -> Any:
    """Return the rows of a column at `indices` (B,): a tensor or array (B, *), or a list of B values."""
    if isinstance(column, _TensorColumn):
        return column.gather(indices)
    if isinstance(column, np.ndarray):
        # `take` is several times as fast as `array[indices]`, but first copies an array that is not contiguous.
        is_whole = column.flags.c_contiguous and column.flags.aligned
        return np.asarray(take(column, indices) if is_whole else column[indices])
    return [column[index] for index in indices.tolist()]


def _is_numbers(column: object) -> bool:
    """Return whether a column is a tensor, or an array whose dtype torch has too: its rows are returned as a tensor."""
    return isinstance(column, _TensorColumn) or (isinstance(column, np.ndarray) and column.dtype.kind in "biufc")


def _as_tensor(rows: Any) -> Tensor:
    return torch.from_numpy(native(rows)) if isinstance(rows, np.ndarray) else rows


def _is_in_memory(column: object) -> bool:
    if isinstance(column, _TensorColumn):
        column = column.tensor
    if isinstance(column, Tensor):
        return column.is_cpu
    if not isinstance(column, np.ndarray):
        return type(column) in (list, range)
    while isinstance(column, np.ndarray):  # the array may be a view of a mapped file
        column = column.base
    return not isinstance(column, mmap.mmap)


def _map_columns(columns: Columns, function: Callable[[Any], object]) -> Any:
    """Return the same structure of dicts and tuples, with `function(leaf)` in place of each leaf (column)."""
    if isinstance(columns, dict):
        return {name: _map_columns(column, function) for name, column in columns.items()}
    if isinstance(columns, tuple):
        parts = [_map_columns(column, function) for column in columns]
        kind: Any = type(columns)
        return tuple.__new__(kind, parts) if hasattr(kind, "_fields") else tuple(parts)
    return function(columns)


def _leaves(columns: Columns) -> list[Any]:
    return [leaf for _, leaf in _named_leaves(columns)]


def _named_leaves(columns: Columns, name: str = "") -> list[tuple[str, Any]]:
    """Return each leaf (column) with its name: the keys and positions that lead to it, joined by dots."""
    if not isinstance(columns, dict | tuple):
        return [(name, columns)]
    parts = columns.items() if isinstance(columns, dict) else enumerate(columns)
    return [leaf for part, column in parts for leaf in _named_leaves(column, f"{name}.{part}" if name else str(part))]


def _prepare(columns: Columns) -> Columns:
    """Check the columns, wrap each tensor in a `_TensorColumn`, and turn lists of columns into tuples."""
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
        kind: Any = type(columns)
        return tuple.__new__(kind, parts) if hasattr(kind, "_fields") else tuple(parts)
    columns = by_position(columns)
    if isinstance(columns, np.ma.MaskedArray) and np.ma.is_masked(columns):
        raise ValueError(
            "ArrayDataset: a column has masked values, and a tensor has no mask. Give column.filled(value), and "
            "np.ma.getmaskarray(column) as another column if you need it."
        )
    if isinstance(columns, Tensor | np.ndarray) and columns.ndim == 0:
        raise ValueError(f"ArrayDataset: found a column without rows, {columns!r}; wanted at least one axis.")
    if isinstance(columns, Tensor):
        return _TensorColumn(columns)
    if is_frame(columns) or not is_map_style(columns):
        raise TypeError(
            f"ArrayDataset: found a column of type {type(columns).__name__}, wanted a tensor, a numpy array, a sequence, or a "
            f"tuple or dict of them. {frame_way_out(columns)}".rstrip()
        )
    return columns
