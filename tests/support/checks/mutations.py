"""All the ways to damage a state."""

import copy
import io
import json
import pickle
import random
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    float("nan"),
    "x",
    [],
    {},
    [None],
    [-1],
    10**9,
    2**31,
    2**63,
    10**30,
    (1, 2),
]


def paths_in(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value in a state, containers too."""
    entries = state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, list) else ()
    for name, value in entries:
        yield (*path, name)
        yield from paths_in(value, (*path, name))


def mutations(state: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a state with one value lost, replaced, of another type, moved by one, shortened, or taken from another state."""
    yield from ((f"the whole is {value!r}", value) for value in VALUES)
    for path in paths_in(state):
        name = path[-1]
        value = _at(state, path)
        found = [*VALUES, str(value), [value], {"x": value}]
        if isinstance(value, int):
            found += [value + 1, value - 1, float(value)]
        if isinstance(value, list):
            found += [value[:-1], value[1:], value + value, value[::-1]]
        if (taken := _at(other, path)) is not None:
            found.append(taken)
        for each in found:
            damaged = copy.deepcopy(state)
            _at(damaged, path[:-1])[name] = each
            yield f"{path} is {each!r}", damaged
        damaged = copy.deepcopy(state)
        del _at(damaged, path[:-1])[name]
        yield f"{path} is lost", damaged


def flips(state: dict[str, Any], count: int, seed: int) -> Iterator[tuple[str, Any]]:
    """Yield what JSON and torch.load still read after one bit of a file has flipped."""
    draw = random.Random(seed)
    file = io.BytesIO()
    torch.save(state, file)
    for number in range(count):
        content = bytearray(json.dumps(state).encode() if number % 2 else file.getvalue())
        place = draw.randrange(len(content))
        content[place] ^= 1 << draw.randrange(8)
        try:
            with warnings.catch_warnings(action="ignore"):
                found = json.loads(content) if number % 2 else torch.load(io.BytesIO(content), weights_only=True)
        except (
            *(ValueError, RuntimeError, pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError),
            AssertionError,  # of torch before 2.9
        ):
            continue  # the reader has seen it
        yield f"bit flip {number} at {place}", found


def _at(state: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        try:
            state = state[name]
        except (KeyError, IndexError, TypeError):
            return None
    return state
