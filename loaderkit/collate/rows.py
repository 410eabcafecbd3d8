"""Large tensors become rows of their batch as soon as they are read, while they lie in the caches, and their own memory serves the next."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from torch import Tensor
from torch.utils.data import default_collate

from loaderkit.system.batch_memory import LARGE, current
from loaderkit.system.memory import new_empty

_LARGE_ROW = 1 << 17  # bytes; the caches hold a large batch of smaller ones, too, but each costs 5 us
_NUMPY = frozenset(np.dtype(name) for name in ("?", *"bBhHiIqQlLefdFD"))  # in the machine's byte order
_ITSELF = object()  # for a sample without parts


def stack_rows(values: Sequence[Tensor]) -> Tensor:
    """Return `torch.stack` of tensors of one dtype; of rows of a batch, all in order, that batch."""
    first = values[0]
    lending = current() if first.nbytes * len(values) >= LARGE else None
    if lending is not None:
        whole = lending.filled.get(first.data_ptr())
        if whole is not None and _are_rows(values, whole):
            return whole
    info = torch_data.get_worker_info()
    if info is not None and not hasattr(info, "writes_into_slots"):
        result: Tensor = default_collate(list(values))  # into shared memory
        return result
    if lending is None or not all(map(_is_usual, values)):
        return torch.stack(values)  # type: ignore[arg-type]  # any sequence
    return torch.stack(values, out=new_empty((len(values), *first.shape), first))  # type: ignore[arg-type]


def keep_rows(samples: list[Any], count: int) -> Callable[[Any], None]:
    """Return what takes the next samples of a batch into a list of the first: with rows of the batch for large tensors and arrays."""
    large = {key: value for key, value in _parts_of(samples[0]) if _is_large(value, count)}
    lending = current() if large else None
    if lending is None:
        return samples.append
    wholes = {key: _new_whole(value, count) for key, value in large.items()}
    lending.filled |= {whole.data_ptr(): whole for whole in wholes.values()}
    return _Rows(samples, wholes).add


class _Rows:
    def __init__(self, samples: list[Any], wholes: Mapping[Any, Tensor]) -> None:
        self._samples, self._kind, self._wholes = samples, type(samples[0]), wholes
        samples[0] = self._place(samples[0], 0)

    def add(self, sample: Any) -> None:
        self._samples.append(self._place(sample, len(self._samples)))

    def _place(self, sample: Any, row: int) -> Any:
        if type(sample) is not self._kind:
            return sample
        if _ITSELF in self._wholes:
            return _put(sample, self._wholes[_ITSELF], row)
        parts: Any = dict(sample) if self._kind is dict else list(sample)
        for key, whole in self._wholes.items():
            with contextlib.suppress(LookupError):  # a sample of another structure: stacking names it
                parts[key] = _put(parts[key], whole, row)
        return parts if self._kind is dict else tuple(parts)


def _parts_of(sample: Any) -> Iterable[tuple[Any, Any]]:
    if type(sample) is dict:
        return sample.items()
    return enumerate(sample) if type(sample) is tuple else [(_ITSELF, sample)]


def _is_large(value: Any, count: int) -> bool:
    if type(value) is not Tensor and type(value) is not np.ndarray:
        return False
    return value.nbytes >= _LARGE_ROW and value.nbytes * count >= LARGE and _is_usual(value)


def _is_usual(value: Any) -> bool:
    """Say whether its values are all that a batch takes over from it."""
    if type(value) is np.ndarray:
        return value.dtype in _NUMPY
    strided = value.is_cpu and value.layout is torch.strided and not value.is_quantized
    return strided and not value.requires_grad


def _new_whole(value: Any, count: int) -> Tensor:
    like = value if type(value) is Tensor else torch.from_numpy(np.empty(0, value.dtype))
    return new_empty((count, *value.shape), like)


def _put(value: Any, whole: Tensor, row: int) -> Any:
    """Write a value into its row, and return that as what the value is; return the value where it does not fit."""
    kind = type(value)
    if kind is not Tensor and kind is not np.ndarray:
        return value
    if row >= len(whole) or value.shape != whole.shape[1:] or not _is_usual(value):
        return value
    place: Any = whole[row] if kind is Tensor else whole[row].numpy()
    if value.dtype != place.dtype:
        return value
    place[...] = value
    return place


def _are_rows(values: Sequence[Tensor], whole: Tensor) -> bool:
    start, step = whole.data_ptr(), whole[0].nbytes
    return len(values) == len(whole) and all(value.data_ptr() == start + row * step for row, value in enumerate(values))
