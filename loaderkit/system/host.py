"""Batches are made on the host, whatever `torch.set_default_device` says.

Forked workers inherit this default, but may not be able to use its device. Other workers do not inherit it. So a batch would
depend on how its workers start, or be on two devices.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

import torch


def _is_host() -> bool:
    """Return whether tensors are made on the host if no device is named."""
    try:
        return torch.get_default_device().type == "cpu"
    except AttributeError:  # torch 2.8, after `torch.set_default_device(None)`
        return True


_is_host()  # so that torch imports now what this needs: at the first batch no file may be free to open

T = TypeVar("T")


def use_host() -> None:
    """Make tensors on the host in this process from now on, unless a device is named."""
    if not _is_host():
        torch.set_default_device("cpu")


def host() -> AbstractContextManager[object]:
    """Return a context in which tensors are made on the host, unless a device is named."""
    return nullcontext() if _is_host() else torch.device("cpu")


def on_host(items: Iterator[T]) -> Iterator[T]:
    """Return an iterator whose `next` makes the items' tensors on the host, unless a device is named."""
    return items if _is_host() else _OnHost(items)


class _OnHost(Generic[T]):
    def __init__(self, items: Iterator[T]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with torch.device("cpu"):
            return next(self._items)
