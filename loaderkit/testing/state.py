"""Check that a loader's state is a small value of plain ints and strings, the same on every rank."""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from loaderkit.testing.compare import LawError, find_difference, raised
from loaderkit.testing.consume import MakeLoader, failing_as, has_state, make, process, ranks_of, run_epoch


def assert_small_state(make_loader: MakeLoader, *, size_bytes: int = 1024, worlds: Sequence[int] = ()) -> None:
    """Check that the state is small, plain, and the same on every rank, before an epoch and after each batch.

    Args:
        make_loader: Called with `world=World(rank, size)` if `worlds` are given.
        size_bytes: Largest size of the state as JSON.
        worlds: Numbers of ranks to check, one after another.

    Raises:
        LawError: If there is no state, it is too large, or it holds anything but plain ints, strings, bools and None. Also
            if JSON or `torch.load(weights_only=True)` does not restore it, or if ranks differ.

    Examples:
        >>> def make_loader(world):
        ...     return lk.Loader(range(10), 3, shuffle=True, world=world)
        >>> lk.testing.assert_small_state(make_loader, worlds=(1, 2))
    """
    for size in worlds or (None,):
        first: list[object] = []
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
                        f"which a checkpoint keeps: {difference}."
                    )


def _states(loader: Any) -> list[object]:
    if not has_state(loader):
        raise LawError(f"{type(loader).__name__} has no state_dict() and load_state_dict(): it cannot resume.")
    # Copied at once: a loader may return an object that it changes later.
    states = [_copied(loader.state_dict())]
    states += [_copied(loader.state_dict()) for _ in run_epoch(loader, 0, consumer="trainer")]
    return states


def _copied(state: object) -> object:
    if isinstance(state, Mapping):
        return {key: _copied(value) for key, value in state.items()}
    return [_copied(value) for value in state] if isinstance(state, list) else state


def _check(state: object, size_bytes: int, what: str) -> None:
    if odd := _find_odd(state, "state"):
        raise LawError(f"{what} has {odd}, wanted plain ints and strings, in dicts with string keys and in lists.")
    text = json.dumps(state)
    if json.loads(text) != state:
        raise LawError(f"{what} changes when it goes through JSON.")
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
        raise LawError(f"{what} changes when it goes through torch.load(weights_only=True).")


def _find_odd(value: object, path: str) -> str | None:
    """Describe the first value in a state that is not plain; None if all are."""
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
