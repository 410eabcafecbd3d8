"""Whose random numbers: the caller's stay where they were, and a dataset keeps none of its own."""

import random
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from loaderkit.system.pickling import parts_of
from loaderkit.testing.compare import LawError, find_difference
from loaderkit.testing.consume import MakeLoader, failing_as, generator_states, has_state, make, process

_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator, random.Random)
_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), np.ndarray, torch.Tensor, type, types.ModuleType)


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


def _is_global(value: Any) -> bool:
    own = (torch.default_generator, getattr(np.random.mtrand, "_rand", None), getattr(random, "_inst", None))
    return any(value is generator for generator in own)
