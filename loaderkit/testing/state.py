"""A loader's state: a tiny value of plain ints and strings, the same on every rank."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from loaderkit.testing.compare import LawError, find_difference, raised
from loaderkit.testing.consume import MakeLoader, failing_as, has_state, make, process, ranks_of, run_epoch


def assert_small_state(make_loader: MakeLoader, *, size_bytes: int = 1024, worlds: Sequence[int] = ()) -> None:
    """Check the state before the first batch of an epoch and after each: tiny, plain, and the same on every rank.

    Args:
        make_loader: Called with `world=World(rank, size)` if `worlds` are given.
        size_bytes: The most that it may be, written as JSON.
        worlds: Numbers of ranks, one after the other.

    Raises:
        LawError: If there is no state, a value in it is not a plain int, string,
            bool or None, it is too large, JSON or `torch.load(weights_only=True)`
            does not give it back, or two ranks' states differ.
    """
    for size in worlds or (None,):
        first: list[Any] = []
        for rank, world in enumerate(ranks_of(size)):
            with process(seed=rank), failing_as("a run whose state is saved after every batch"):
                states = _states(make(make_loader, world))
            for batches, state in enumerate(states):
                _check(state, size_bytes, f"the state after {batches} batches")
            first = first or states
            for batches, (wanted, state) in enumerate(zip(first, states, strict=False)):
                if difference := find_difference(wanted, state, "state"):
                    raise LawError(
                        f"after {batches} batches the state of rank {rank} of {size} is not that of rank 0, "
                        f"which is the one that a checkpoint keeps: {difference}."
                    )


def _states(loader: Any) -> list[Any]:
    if not has_state(loader):
        raise LawError(f"{type(loader).__name__} has no state_dict() and load_state_dict(): it cannot be resumed.")
    # Copied at once: a loader may hand out what it goes on changing.
    states = [_copied(loader.state_dict())]
    states += [_copied(loader.state_dict()) for _ in run_epoch(loader, 0, consumer="trainer")]
    return states


def _copied(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {key: _copied(value) for key, value in state.items()}
    return [_copied(value) for value in state] if isinstance(state, list) else state


def _check(state: Any, size_bytes: int, what: str) -> None:
    if odd := _find_odd(state, "state"):
        raise LawError(f"{what} has {odd}, wanted plain ints and strings, in dicts with string keys and in lists.")
    text = json.dumps(state)
    if json.loads(text) != state:
        raise LawError(f"{what} is not what JSON gives back of it.")
    if len(text) > size_bytes:
        largest = ""
        if isinstance(state, Mapping):
            key = max(state, key=lambda name: len(json.dumps(state[name])))
            largest = f"; state[{key!r}] alone has {len(json.dumps(state[key])):,}"
        raise LawError(f"{what} is {len(text):,} bytes of JSON, wanted at most {size_bytes:,}{largest}.")
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    try:
        loaded = torch.load(file, weights_only=True)
    except Exception as error:
        raise LawError(f"{what}: torch.load(weights_only=True) {raised(error)}.") from error
    if loaded != state:
        raise LawError(f"{what} is not what torch.load(weights_only=True) gives back of it.")


def _find_odd(value: Any, path: str) -> str | None:
    """Return the first thing in a state that is not plain."""
    if type(value) is dict:
        for key, entry in value.items():
            if type(key) is not str:
                return f"the key {key!r} in {path}"
            if odd := _find_odd(entry, f"{path}[{key!r}]"):
                return odd
        return None
    if type(value) is list:
        return next((odd for i, entry in enumerate(value) if (odd := _find_odd(entry, f"{path}[{i}]"))), None)
    return None if type(value) in (int, str, bool, type(None)) else f"a {type(value).__name__} at {path}"
