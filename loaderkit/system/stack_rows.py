"""Stacking large tensors: each sample is copied into its row of the batch right after it is read.

The row is copied while the sample is in the CPU's caches, and the sample's own memory serves the next one. A batch of 64 images
of 602 KB takes 45 ms instead of 126 (`benchmarks/large.py`).
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from torch import Tensor
from torch.utils.data import default_collate

from loaderkit.system.batch_memory import LARGE, current, new_empty
from loaderkit.system.nested import is_plain
from loaderkit.system.worker_info import in_worker_process

_LARGE_ROW = 1 << 17  # bytes; smaller rows stay in the caches anyway, and each row costs 5 us
_NUMPY = frozenset(np.dtype(name) for name in ("?", *"bBhHiIqQlLefdFD"))  # in the machine's byte order
_ITSELF = object()  # the key of a sample that has no fields


def stack_rows(values: Sequence[Tensor]) -> Tensor:
    """Return `torch.stack` of tensors with one dtype. If they are the rows of a batch already, return that batch."""
    first = values[0]
    lending = current() if first.nbytes * len(values) >= LARGE else None
    if lending is not None:
        whole = lending.filled.get(first.data_ptr())
        if whole is not None and _are_rows(values, whole):
            return whole
    info = torch_data.get_worker_info()
    if info is not None and in_worker_process() and not hasattr(info, "writes_into_slots"):
        result: Tensor = default_collate(list(values))  # in a torch worker: into shared memory
        return result
    if lending is None or not all(map(_has_only_values, values)):
        return torch.stack(values)  # type: ignore[arg-type]  # any sequence
    return torch.stack(values, out=new_empty((len(values), *first.shape), first))  # type: ignore[arg-type]  # any sequence


def keep_rows(samples: list[Any], count: int) -> Callable[[object], None]:
    """Return a function that appends the next samples of a batch to `samples`, with large fields moved to rows of the batch.

    `samples` holds the first of the batch's `count` samples.
    """
    large = {key: value for key, value in _fields_of(samples[0]) if _is_large(value, count)}
    lending = current() if large else None
    if lending is None:
        return samples.append
    wholes = {key: _new_whole(value, count) for key, value in large.items()}
    lending.filled |= {whole.data_ptr(): whole for whole in wholes.values()}
    kind = type(samples[0])

    def move(sample: Any, row: int) -> object:
        if type(sample) is not kind:
            return sample
        if _ITSELF in wholes:
            return _move_value(sample, wholes[_ITSELF], row)
        fields: Any = dict(sample) if kind is dict else list(sample)
        for key, whole in wholes.items():
            with contextlib.suppress(LookupError):  # a sample with other fields: stacking reports it
                fields[key] = _move_value(fields[key], whole, row)
        return fields if kind is dict else tuple(fields)

    samples[0] = move(samples[0], 0)
    return lambda sample: samples.append(move(sample, len(samples)))


def _fields_of(sample: object) -> Iterable[tuple[object, object]]:
    if type(sample) is dict:
        return sample.items()
    return enumerate(sample) if type(sample) is tuple else [(_ITSELF, sample)]


def _is_large(value: object, count: int) -> bool:
    if type(value) is not Tensor and type(value) is not np.ndarray:
        return False
    # A sparse tensor has no nbytes.
    return _has_only_values(value) and value.nbytes >= _LARGE_ROW and value.nbytes * count >= LARGE


def _has_only_values(value: Any) -> bool:
    """Return whether a copy of a tensor's or array's elements is a complete copy of it."""
    return value.dtype in _NUMPY if type(value) is np.ndarray else is_plain(value)


def _new_whole(value: Any, count: int) -> Tensor:
    like = value if type(value) is Tensor else torch.from_numpy(np.empty(0, value.dtype))
    return new_empty((count, *value.shape), like)


def _move_value(value: Any, whole: Tensor, row: int) -> object:
    """Copy a value to its row and return the row, as a tensor or an array like the value. Return other values as they are."""
    kind = type(value)
    if kind is not Tensor and kind is not np.ndarray:
        return value
    if row >= len(whole) or value.shape != whole.shape[1:] or not _has_only_values(value):
        return value
    place: Any = whole[row] if kind is Tensor else whole[row].numpy()
    if value.dtype != place.dtype:
        return value
    place[...] = value
    return place


def _are_rows(values: Sequence[Tensor], whole: Tensor) -> bool:
    start, step = whole.data_ptr(), whole[0].nbytes
    return len(values) == len(whole) and all(value.data_ptr() == start + row * step for row, value in enumerate(values))
