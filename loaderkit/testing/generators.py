"""Whose random numbers: the caller's stay where they were, and a dataset keeps none of its own."""

import functools
import random
import types
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from loaderkit.testing.compare import LawError, find_difference
from loaderkit.testing.consume import MakeLoader, failing_as, generator_states, has_state, make, process

_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator, random.Random)
_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), np.ndarray, torch.Tensor, type, types.ModuleType)
_ENTRIES = 1_000  # of a container; samples kept in a list are alike


def assert_generators_untouched(make_loader: MakeLoader) -> None:
    """Check that torch's, numpy's and `random`'s global generators stand still while an epoch is drawn.

    They are the trainer's: else its dropout depends on the loader's settings.

    Args:
        make_loader: Called without arguments.

    Raises:
        LawError: If one was moved; it says by what.
    """
    with process(seed=0):
        before = generator_states()
        with failing_as("making the loader"):
            loader = make(make_loader)
        _check_unmoved(before, "making the loader")
        with failing_as("drawing an epoch"):
            iterator = iter(loader)
            _check_unmoved(before, "iter(loader)")
            number = -1
            for number, _ in enumerate(iterator):
                _check_unmoved(before, f"drawing batch {number}")
                if has_state(loader):
                    loader.state_dict()
                    _check_unmoved(before, f"state_dict() after batch {number}")
        _check_unmoved(before, "the epoch's end")
        if number < 0:
            raise LawError("the epoch has no batches: nothing was shown.")


def find_private_generators(dataset: Any, *, name: str = "dataset") -> list[str]:
    """Return where a dataset keeps random generators of its own, such as "dataset.transform.rng".

    Looks through attributes, containers, partials, bound methods and closures;
    of a container at the first 1,000 entries. The global generators don't count.
    """
    return [
        path for path, value in reachable(dataset, name) if isinstance(value, _GENERATORS) and not _is_global(value)
    ]


def assert_no_private_generators(dataset: Any) -> None:
    """Check that a dataset keeps no random generator of its own.

    Each worker gets a copy of it that draws the same numbers, and a resume
    starts it anew.

    Raises:
        LawError: If it does; it says where.
    """
    paths = find_private_generators(dataset)
    if paths:
        one = len(paths) == 1
        raise LawError(
            f"{', '.join(paths)} {'is a random generator' if one else 'are random generators'} of the dataset's own: "
            "each worker gets a copy that draws the same numbers, and a resume starts it anew. Draw from "
            "loaderkit.sample_rng() when a sample is read, or from torch's, numpy's or random's global functions."
        )


def _check_unmoved(before: Mapping[str, Any], what: str) -> None:
    for name, state in generator_states().items():
        if find_difference(before[name], state) is not None:
            raise LawError(
                f"{what} moved {name}'s global generator: what the trainer draws from it, dropout for one, "
                "then depends on the loader."
            )


def reachable(root: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield what can be reached, each object once, nearest first, by the path that leads there."""
    queue = deque([(name, root)])
    seen: dict[int, Any] = {}  # keeps them alive: ids are not given twice
    while queue:
        path, value = queue.popleft()
        if id(value) in seen or isinstance(value, _LEAVES):
            continue
        seen[id(value)] = value
        yield path, value
        if not isinstance(value, _GENERATORS):
            queue.extend(parts_of(path, value))


def parts_of(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, by the path that leads there."""
    # Not any Mapping or Sequence: one may read a file for each entry.
    if isinstance(value, dict):
        for key, entry in islice(value.items(), _ENTRIES):
            yield f"{path}[{key!r}]", entry
    elif isinstance(value, (list, tuple, deque)):
        for index, entry in enumerate(islice(value, _ENTRIES)):
            yield f"{path}[{index}]", entry
    elif isinstance(value, (set, frozenset)):
        for entry in islice(value, _ENTRIES):
            yield f"{path}{{...}}", entry
    if isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f"{path}.<{variable}>", cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield f"{path}.__defaults__", value.__defaults__
        yield f"{path}.__kwdefaults__", value.__kwdefaults__
    for attribute, entry in _attributes(value):
        yield f"{path}.{attribute}", entry


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(kind.__dict__.get(name), types.MemberDescriptorType) and hasattr(value, name):
                yield name, getattr(value, name)


def _is_global(value: Any) -> bool:
    own = (torch.default_generator, getattr(np.random.mtrand, "_rand", None), getattr(random, "_inst", None))
    return any(value is generator for generator in own)
