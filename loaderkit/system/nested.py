"""Nested batches: copies to a device and to page-locked memory that keep their types."""

from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from loaderkit.system.containers import field_names, is_sequence, with_parts

T = TypeVar("T")
_VALUES = frozenset((str, bytes, bool, int, float, type(None)))  # the usual leaves that stay


def should_pin(pin_memory: bool | str, device: torch.device | None) -> bool:
    """Return whether to pin batches for a device, by default the machine's accelerator.

    Both True and "auto" pin on CUDA only: elsewhere it does not help.

    Raises:
        ValueError: If `pin_memory` is anything else.
    """
    if pin_memory not in (True, False, "auto"):
        raise ValueError(f"loader: pin_memory is {pin_memory!r}, wanted True, False or 'auto'.")
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True)
    on_cuda = device is not None and device.type == "cuda" and torch.cuda.is_available()
    return on_cuda and bool(pin_memory) and not _is_bad_fork()


def pin(batch: T) -> T:
    """Copy a batch's tensors to page-locked memory, and custom types by their own `pin_memory()`.

    Tensors on a device stay there. In a process that was forked from one that uses CUDA, the batch is returned as it is.
    """
    return batch if _is_bad_fork() else map_leaves(batch, _pinned, "pin_memory")


def _pinned(leaf: Any) -> object:
    return pin_tensor(leaf) if isinstance(leaf, Tensor) else leaf.pin_memory()


def pin_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in page-locked memory: the same one if it is already there, or on a device."""
    if tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    if tensor.layout == torch.strided and not tensor.is_nested and 0 in tensor.stride():
        # torch keeps the strides, and cannot write to an expanded tensor.
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor.pin_memory()


def is_plain(tensor: Tensor) -> bool:
    """Return whether a copy of a tensor's elements is a complete copy: no subclass, gradient, other device or other layout."""
    return (
        type(tensor) is Tensor
        and tensor.layout == torch.strided
        and tensor.is_cpu
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor of any layout. A sparse one has no `nbytes`."""
    parts: list[Tensor] = [tensor]
    if tensor.is_nested and tensor.layout == torch.jagged:
        parts = [tensor.values()]
    elif tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        parts = [tensor.indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return sum(part.nbytes for part in parts)


def to_device(batch: T, device: torch.device | str, *, non_blocking: bool | None = None) -> T:
    """Copy a batch's tensors, and types with a `to(device)`, to a device.

    Args:
        batch: Tensors in mappings, sequences and objects with fields (dataclasses, attrs classes, pydantic models,
            SimpleNamespace), nested. Other leaves stay as they are.
        device: The target.
        non_blocking: Whether the host continues during the copy. None means: only from page-locked memory to CUDA.

    Returns:
        The same structure, with the same types and attributes. No constructor runs.

    Examples:
        >>> batch = {"image": torch.zeros(2, 3, 8, 8), "name": ["a", "b"]}
        >>> moved = lk.to_device(batch, "meta")
        >>> moved["image"].device.type, moved["name"]
        ('meta', ['a', 'b'])
    """
    target = torch.device(device)

    def move(leaf: Any) -> object:
        continues = non_blocking
        if continues is None:
            continues = target.type == "cuda" and isinstance(leaf, Tensor) and leaf.is_pinned()
        leaf = movable(leaf)
        moved = leaf.to(target, non_blocking=True) if continues else leaf.to(target)
        return leaf if moved is None else moved  # a method that moves its object may return nothing

    moved: T = map_leaves(batch, move)
    return moved


def movable(leaf: T) -> T:
    """Return a leaf that can be moved without a change to the caller's batch: a copy of transformers' dicts, else the leaf.

    The `to` of transformers' dicts changes them in place.
    """
    return with_parts(leaf, dict(leaf)) if isinstance(leaf, UserDict) else leaf


def map_leaves(batch: Any, function: Callable[[Any], object], method: str = "to") -> Any:
    """Apply a function to each leaf: tensors, and other values that have a method of this name."""
    kind = type(batch)
    if kind in _VALUES:
        return batch
    if kind is dict:
        return {name: map_leaves(value, function, method) for name, value in batch.items()}
    if kind is list:
        return [map_leaves(part, function, method) for part in batch]
    if kind is tuple:
        return tuple([map_leaves(part, function, method) for part in batch])
    if isinstance(batch, Tensor) or (callable(getattr(batch, method, None)) and not isinstance(batch, type)):
        return function(batch)
    if isinstance(batch, Mapping):
        return with_parts(batch, {name: map_leaves(batch[name], function, method) for name in batch})
    if is_sequence(batch):
        return with_parts(batch, [map_leaves(part, function, method) for part in batch])
    names = field_names(batch)
    if names is None:
        return batch
    return with_parts(batch, {name: map_leaves(getattr(batch, name), function, method) for name in names})


def _is_bad_fork() -> bool:
    """Return whether CUDA cannot be used because this process was forked from one that uses it."""
    return bool(torch.cuda._is_in_bad_fork())
