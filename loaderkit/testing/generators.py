"""Check that a loader does not use the caller's random generators, and that a dataset keeps none."""

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
    """Check that an epoch leaves the global generators of torch, numpy and `random` unchanged.

    Otherwise the training's own randomness, such as dropout, depends on the loader's settings.

    Args:
        make_loader: Called without arguments.

    Raises:
        LawError: If a generator moved; the message says at which step.

    Examples:
        >>> lk.testing.assert_generators_untouched(lambda: lk.Loader(range(10), 3, shuffle=True))
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
            raise LawError("the epoch has no batches: nothing to check.")


def find_private_generators(dataset: Any, *, name: str = "dataset") -> list[str]:
    """Return the paths of the random generators that a dataset keeps, such as "dataset.transform.rng".

    The search covers attributes, containers (their first 1,000 entries), partials, bound methods
    and closures. The global generators do not count.

    Args:
        dataset: Any object.
        name: The object's name in the paths.

    Examples:
        >>> lk.testing.find_private_generators({"noise": np.random.default_rng(0)})
        ["dataset['noise']"]
    """
    return [
        path for path, value in reachable(dataset, name) if isinstance(value, _GENERATORS) and not _is_global(value)
    ]


def assert_no_private_generators(dataset: Any) -> None:
    """Check that a dataset keeps no random generator.

    Each worker's copy of a generator draws the same numbers, and a resume restarts it.

    Args:
        dataset: Any object.

    Raises:
        LawError: If the dataset keeps a generator; the message names its path.

    Examples:
        >>> lk.testing.assert_no_private_generators(lk.ArrayDataset({"x": torch.zeros(10, 2)}))
    """
    paths = find_private_generators(dataset)
    if paths:
        one = len(paths) == 1
        raise LawError(
            f"{', '.join(paths)} {'is a random generator' if one else 'are random generators'} that the dataset keeps: "
            "each worker's copy draws the same numbers, and a resume restarts it. Draw from loaderkit.sample_rng() when "
            "a sample is read, or from the global functions of torch, numpy or random."
        )


def _check_unmoved(before: Mapping[str, Any], what: str) -> None:
    for name, state in generator_states().items():
        if find_difference(before[name], state) is not None:
            raise LawError(
                f"{what} moved {name}'s global generator: random numbers of the training, such as dropout, "
                "then depend on the loader."
            )


def reachable(root: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, object) for each object that can be reached from `root`, nearest first, each once."""
    queue = deque([(name, root)])
    seen: dict[int, Any] = {}  # holds the objects, so that no id is reused
    while queue:
        path, value = queue.popleft()
        if id(value) in seen or isinstance(value, _LEAVES):
            continue
        seen[id(value)] = value
        yield path, value
        if not isinstance(value, _GENERATORS):
            queue.extend(parts_of(path, value))


def _is_global(value: Any) -> bool:
    # numpy's and random's global functions are methods of their global generators.
    known = (
        torch.default_generator,
        *(getattr(each, "__self__", None) for each in (np.random.random_sample, random.seed)),
    )
    return any(value is generator for generator in known)
