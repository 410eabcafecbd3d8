"""Refuse datasets that ignore the index and return the next sample of an iterator, as torchio's Queue does."""

import dis
import types
from collections.abc import Iterator

import torch.utils.data as torch_data

from loaderkit.system.names import has_class

_DEPTH = 8  # levels of datasets inside datasets that are checked


def check_by_index(dataset: object, depth: int = _DEPTH) -> None:
    """Refuse a dataset whose samples depend on what was read before, not on their index. Check datasets inside it too.

    Raises:
        TypeError: If one is torchio's Queue, or ignores the index and holds an iterator or a DataLoader.
    """
    kind = type(dataset)
    if has_class(dataset, "torchio.data.queue.Queue"):
        raise _refused(
            kind, "its own queue", "loaderkit.PatchDataset(subjects, sampler=sampler, patches=samples_per_volume)"
        )
    own = getattr(dataset, "__dict__", {})
    for name, value in own.items():
        if isinstance(value, Iterator | torch_data.DataLoader) and _ignores_index(kind):
            instead = "a dataset that reads by index, or a loaderkit.StreamDataset over what the iterator reads"
            raise _refused(kind, f"{name!r}, a {type(value).__name__}", instead)
    inner = own.get("dataset"), *_listed(own.get("datasets"))
    for part in inner if depth else ():
        if part is not None:
            check_by_index(part, depth - 1)


def _refused(kind: type, source: str, instead: str) -> TypeError:
    return TypeError(
        f"loader: {kind.__name__} ignores the index of a sample and takes the next one from {source}. So a sample depends on what was "
        f"read before, each worker has a queue of its own, and a resume gives other samples. Wanted samples by index: give {instead}."
    )


def _listed(parts: object) -> list[object]:
    return list(parts.values()) if isinstance(parts, dict) else list(parts) if isinstance(parts, list | tuple) else []


def _ignores_index(kind: type) -> bool:
    """Return whether the code of `__getitem__` never uses its index."""
    function = getattr(kind, "__getitem__", None)
    if not isinstance(function, types.FunctionType) or function.__code__.co_argcount != 2:
        return False
    index = function.__code__.co_varnames[1]
    for instruction in dis.get_instructions(function):
        used = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if index in used:  # also if the instruction only makes a cell variable of it, for an inner function
            return False
    return True
