"""From host to device: where pinning helps, and copies of nested batches that keep their types."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor


def should_pin(pin_memory: bool | str, device: torch.device | None) -> bool:
    """Decide whether batches are copied to page-locked memory.

    Args:
        pin_memory: True, False, or "auto": where it helps, which is on CUDA
            (also for batches that go there later), and not on CPU or MPS.
        device: Where the batches go; None means the machine's accelerator.

    Raises:
        ValueError: If `pin_memory` is anything else.
    """
    if pin_memory not in (True, False, "auto"):
        raise ValueError(f"loader: pin_memory is {pin_memory!r}, wanted True, False or 'auto'.")
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True)
    on_cuda = device is not None and device.type == "cuda" and torch.cuda.is_available()
    return on_cuda and bool(pin_memory) and not _is_shut_out()


def pin(batch: Any) -> Any:
    """Copy a batch's tensors to page-locked memory; custom types by their own `pin_memory()`.

    Tensors on a device stay there, and batches stay as they are in a process that was forked from one that uses CUDA.
    """
    return batch if _is_shut_out() else _map_tensors(batch, pin_tensor, "pin_memory")


def pin_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in page-locked memory: itself, if it is there or on a device."""
    if tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    if tensor.layout == torch.strided and not tensor.is_nested and 0 in tensor.stride():
        # Torch keeps the strides, and can't write to what was expanded. Copies keep their type, if any operation does.
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor.pin_memory()


def to_device(batch: Any, device: torch.device | str, *, non_blocking: bool | None = None) -> Any:
    """Copy a batch's tensors to a device; custom types by their own `to(device)`.

    Args:
        batch: Tensors in dicts, lists, tuples, namedtuples and dataclasses,
            nested; other leaves stay as they are.
        device: Where to.
        non_blocking: None means: only from page-locked memory to CUDA, where
            the copy really runs beside the host.
    """
    target = torch.device(device)

    def move(leaf: Any) -> Any:
        beside = non_blocking
        if beside is None:
            beside = target.type == "cuda" and isinstance(leaf, Tensor) and leaf.is_pinned()
        return leaf.to(target, non_blocking=True) if beside else leaf.to(target)

    return _map_tensors(batch, move, "to")


def map_leaves(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to what `to_device` moves: tensors, and values of types with a method `to`."""
    return _map_tensors(batch, function, "to")


def _is_shut_out() -> bool:
    """Say whether CUDA can't be used here because this process was forked from one that does."""
    return bool(torch.cuda._is_in_bad_fork())


def _map_tensors(batch: Any, function: Callable[[Any], Any], method: str) -> Any:
    """Apply a function to tensors; of other types, to those with a method of the tensor's name."""
    if isinstance(batch, Tensor):
        return function(batch)
    if callable(getattr(batch, method, None)) and not isinstance(batch, type):
        return batch.pin_memory() if method == "pin_memory" else function(batch)
    if isinstance(batch, Mapping):
        mapped = {name: _map_tensors(value, function, method) for name, value in batch.items()}
        kind: Any = type(batch)
        if kind is dict or not isinstance(batch, MutableMapping):
            return mapped if kind is dict else kind(mapped)
        same: Any = copy.copy(batch)  # its constructor may want other things, as defaultdict's does
        for name, value in mapped.items():
            same[name] = value
        return same
    if isinstance(batch, tuple | list):
        parts = [_map_tensors(part, function, method) for part in batch]
        kind = type(batch)
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        same = copy.copy(batch)  # not by its constructor: that may not take all fields, and set others anew
        for field in dataclasses.fields(batch):
            if hasattr(batch, field.name):
                object.__setattr__(same, field.name, _map_tensors(getattr(batch, field.name), function, method))
        return same
    return batch
