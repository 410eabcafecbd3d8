"""Fingerprints: short texts by which a state tells datasets apart. They change with the data, not with transforms.

A dataset gives its own by `fingerprint`. For datasets of torch, numpy, Python and Hugging Face that have none, this
file makes one. It reads a few entries of the data only, so its cost does not grow with the data.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np
import torch
import torch.utils.data as torch_data
from torch import Tensor

from loaderkit.system.arrays import Int64Array
from loaderkit.system.digests import digest, shortened
from loaderkit.system.names import has_class
from loaderkit.system.overrides import own_attribute
from loaderkit.system.types import Array

T = TypeVar("T")
_INDICES = 1024  # of a subset that are hashed; all of a smaller subset
_ENTRIES = 64  # of a list that are hashed
_ROWS = 16  # of an array that are hashed; rows may be large
_READS = (list.__getitem__, tuple.__getitem__, range.__getitem__)


@dataclass(frozen=True)
class _Asking:
    """How fingerprints are made."""

    as_before: bool = False  # as in an earlier loaderkit, which knew only methods
    nameless: set[str] | None = None  # collects the names of classes whose data has no fingerprint


_asking: ContextVar[_Asking] = ContextVar("_asking", default=_Asking())  # noqa: B039 - it is frozen


def fingerprint(dataset: object, size: int) -> str:
    """Return a short text that differs between datasets.

    Args:
        dataset: If it has a method, property or attribute `fingerprint`, the text includes that: a short string that changes
            with the data, not with transforms.
        size: Number of samples.
    """
    found = _text(dataset)
    return f"{size:,} samples" if found is None else f"{size:,} samples ({shortened(found)})"


def fingerprint_of(dataset: object) -> str:
    """Return a dataset's fingerprint without its length; empty if it has none."""
    return _text(dataset) or ""


def fingerprint_of_part(dataset: Any) -> str:
    """Return the length and the fingerprint of a dataset that another one is made of."""
    return f"{len(dataset) if hasattr(type(dataset), '__len__') else ''}:{fingerprint_of(dataset)}"


def fingerprint_of_reader(read: object) -> str | None:
    """Return the fingerprint of a stream's reader, which says more than the shards' names; None if it has none."""
    if _asking.get().as_before:
        own = getattr(read, "fingerprint", None)
    elif callable(own := own_attribute(read, "fingerprint")):
        own = own()
    return own if isinstance(own, str) else None


@contextmanager
def as_before() -> Iterator[None]:
    """Return a context in which fingerprints are made as in an earlier loaderkit: only from a method `fingerprint`."""
    token = _asking.set(_Asking(as_before=True))
    try:
        yield
    finally:
        _asking.reset(token)


@contextmanager
def nameless() -> Iterator[set[str]]:
    """Return a context that collects the names of classes whose data was asked for a fingerprint and has none."""
    found: set[str] = set()
    token = _asking.set(_Asking(nameless=found))
    try:
        yield found
    finally:
        _asking.reset(token)


def named_as_saved(ask: Callable[[], Mapping[str, T]], saved: Mapping[str, object]) -> dict[str, T]:
    """Return the names of this loader's data and order, for comparison with a state.

    If a name differs from the state's, but an earlier loaderkit would have made the state's name, return the state's.

    Args:
        ask: Returns the names of this loader's data and order.
        saved: The names in the state.
    """
    found = dict(ask())
    if any(saved.get(what) != name for what, name in found.items()):
        with as_before():
            before = ask()
        found |= {what: name for what, name in before.items() if saved.get(what) == name}
    return found


def spread_rows(size: int, most: int = _ROWS) -> Int64Array:
    """Return up to `most` indices, spread over a dataset of this size, for a fingerprint."""
    return np.unique(np.linspace(0, max(0, size - 1), most).astype(np.int64))[:size]


def _text(dataset: object) -> str | None:
    asking = _asking.get()
    if asking.as_before:
        own = getattr(dataset, "fingerprint", None)
        try:
            return str(own()) if callable(own) else None
        except TypeError:  # if attributes are forwarded to another object, this one may be anything
            return None
    own = own_attribute(dataset, "fingerprint")
    found = own() if callable(own) else own
    if found is None:
        found = _of_foreign(dataset)
    if found is None and asking.nameless is not None:
        asking.nameless.add(type(dataset).__name__)
    return None if found is None else str(found)


def _of_foreign(dataset: object) -> str | None:
    """Return a text for a dataset that defines no fingerprint; None if its class is not known."""
    if isinstance(dataset, torch_data.Subset):
        return f"subset({len(dataset)} of {fingerprint_of_part(dataset.dataset)}, {_of_indices(dataset.indices)})"
    if isinstance(dataset, torch_data.ConcatDataset):
        return f"concat({', '.join(map(fingerprint_of_part, dataset.datasets))})"
    if isinstance(dataset, torch_data.StackDataset):
        parts = dataset.datasets
        named = parts.items() if isinstance(parts, dict) else enumerate(parts)
        return f"stack({', '.join(f'{name}={fingerprint_of_part(part)}' for name, part in named)})"
    if isinstance(dataset, torch_data.TensorDataset):
        return _of_arrays("tensors", dataset.tensors)
    if isinstance(dataset, Tensor):
        return _of_arrays("tensor", [dataset])
    if isinstance(dataset, np.ndarray):
        return _of_entries(dataset) if dataset.dtype.hasobject else _of_arrays("array", [dataset])
    if isinstance(dataset, list | tuple | range) and type(dataset).__getitem__ in _READS:
        return _of_entries(dataset)
    if has_class(dataset, "datasets.arrow_dataset.Dataset"):
        return _of_hugging_face(dataset)
    return None


def _of_indices(indices: Any) -> str:
    """Return a digest of integers (N,); of more than `_INDICES` only a spread part is hashed."""
    if len(indices) > _INDICES:
        rows = spread_rows(len(indices), _INDICES)
        is_array = isinstance(indices, Tensor | np.ndarray)
        indices = indices[rows] if is_array else [indices[row] for row in rows.tolist()]
    found = np.asarray(indices)
    return digest(found.astype(np.int64) if found.dtype.kind in "iub" else repr(found.tolist()))


def _of_arrays(kind: str, arrays: Sequence[Tensor | Array]) -> str | None:
    """Return a digest of the shapes and dtypes of arrays (N, *), and of rows spread over them."""
    parts: list[Array | str] = []
    for array in arrays:
        rows = spread_rows(len(array))
        if isinstance(array, Tensor):
            if array.layout is not torch.strided or array.is_nested or array.is_meta:
                return None
            picked: Any = array.detach()[torch.from_numpy(rows).to(array.device)]
            picked = picked.resolve_conj().resolve_neg().contiguous().view(torch.uint8) if picked.ndim else picked
            picked = picked.numpy(force=True)  # numpy lacks some dtypes
        else:
            picked = np.ascontiguousarray(array[rows])
        parts += [f"{array.dtype}{tuple(array.shape)}", picked]
    return f"{kind} {digest(*parts)}"


def _of_entries(values: Any) -> str | None:
    """Return a digest of entries spread over a list; None if one is not a plain value, which a reader could change."""
    texts = [_of_entry(values[row]) for row in spread_rows(len(values), _ENTRIES).tolist()]
    return None if None in texts else f"list {digest(*map(str, texts))}"


def _of_entry(value: object) -> str | None:
    """Return a text for a value that cannot change; None for others.

    Of an absolute path, only the last two parts count, because data may move.
    """
    if isinstance(value, PurePath) or (isinstance(value, str) and value.startswith("/")):
        return "path" + "/".join(PurePath(value).parts[-2:])
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return f"{value.dtype}{value.tobytes().hex()}"
    if isinstance(value, tuple):
        texts = [_of_entry(entry) for entry in value]
        return None if None in texts else f"({','.join(map(str, texts))})"
    return repr(value) if value is None or type(value) in (str, bytes, int, float, complex, bool) else None


def _of_hugging_face(dataset: Any) -> str:
    """Return the library's fingerprint; if a function is the dataset's format, a digest of its columns and chosen rows.

    The library's fingerprint would include the function, whose hash may differ from process to process.
    """
    if (dataset.format or {}).get("type") != "custom":
        return str(dataset._fingerprint)
    chosen = dataset._indices
    rows = "" if chosen is None else _of_indices(chosen.column(0).take(spread_rows(len(chosen), _INDICES)).to_numpy())
    return f"rows {digest(repr(dataset.features), rows)}"
