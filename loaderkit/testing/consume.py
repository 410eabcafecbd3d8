"""How training draws from a loader: as a Trainer does, or as a for loop does."""

import copy
import json
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
import torch.utils.data as torch_data

from loaderkit.system.world import World
from loaderkit.testing.compare import LawError, raised

MakeLoader = Callable[..., Iterable[Any]]
OnEpoch = Callable[[Any, int], None]
Consumer = Literal["trainer", "loop"]

_END = object()


def run_epoch(
    loader: Any,
    epoch: int,
    *,
    consumer: Consumer = "loop",
    done: int = 0,
    first: bool = True,
    on_epoch: OnEpoch | None = None,
) -> Iterator[Any]:
    """Yield an epoch's batches as they become trained on: whoever holds one may save the loader's state.

    They are copies: a loader may write its next batch over the last.

    Args:
        loader: Any iterable.
        epoch: Its number, for `on_epoch` and for the samplers of a DataLoader.
        consumer: "trainer" does as Lightning: it stops at `len()` and never asks
            for more; without `len()` it fetches one batch ahead; and it sets a
            sampler's epoch after the process's first `iter()`. "loop" is a for loop.
        done: Batches of this epoch that an earlier process has trained on.
        first: Whether this is the process's first epoch.
        on_epoch: Called with (loader, epoch) before `iter()`.
    """
    return map(_copied, _drawn(loader, epoch, consumer, done, first, on_epoch))


def _drawn(
    loader: Any, epoch: int, consumer: Consumer, done: int, first: bool, on_epoch: OnEpoch | None
) -> Iterator[Any]:
    trainer = consumer == "trainer"
    if on_epoch is not None:
        on_epoch(loader, epoch)
    if not (trainer and first):
        _set_sampler_epoch(loader, epoch)
    iterator = iter(loader)
    if trainer and first:
        _set_sampler_epoch(loader, epoch)
    if not trainer:
        yield from iterator
        return
    length = length_of(loader)
    if length is None:
        ahead = next(iterator, _END)
        while ahead is not _END:
            batch, ahead = ahead, next(iterator, _END)
            yield batch
        return
    for _ in range(length - done):
        batch = next(iterator, _END)
        if batch is _END:
            return
        yield batch


def _copied(batch: Any) -> Any:
    try:
        return copy.deepcopy(batch)
    except Exception:  # a batch type that can't be copied is taken as it is
        return batch


def make(make_loader: MakeLoader, world: World | None = None, **changes: Any) -> Any:
    """Make a loader; `world` is given only where there is one."""
    return make_loader(**changes) if world is None else make_loader(world=world, **changes)


def ranks_of(world_size: int | None) -> list[World | None]:
    """Return each rank's world; where no size is asked for, one process that is not told of any."""
    return [None] if world_size is None else [World(rank, world_size) for rank in range(world_size)]


def length_of(loader: Any) -> int | None:
    """Return `len(loader)`, or None where it has none."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def has_state(loader: Any) -> bool:
    """Say whether a loader can save where it stands."""
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def through_file(state: Any) -> Any:
    """Return a state as it comes back from a checkpoint: through JSON where that is exact, else through pickle."""
    try:
        copy = json.loads(json.dumps(state))
        if copy == state:
            return copy
    except (TypeError, ValueError):
        pass
    return pickle.loads(pickle.dumps(state))


@contextmanager
def process(seed: int) -> Iterator[None]:
    """Give the block global generators with seeds of its own, as a process has, and put the caller's back."""
    before = generator_states()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before["torch"])
        np.random.set_state(before["numpy"])
        random.setstate(before["random"])


def generator_states() -> dict[str, Any]:
    """Return where the three global generators stand."""
    return {
        "torch": torch.default_generator.get_state(),
        "numpy": np.random.get_state(legacy=True),
        "random": random.getstate(),
    }


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Turn an error of the loader's into a LawError that says what was being done."""
    try:
        yield
    except LawError:
        raise
    except Exception as error:
        raise LawError(f"{what} {raised(error)}.") from error


def expected_samples(samples: Any, loader: Any) -> list[Any]:
    """Return the ids that an epoch has to deliver: those given, or 0 to the dataset's length.

    Raises:
        ValueError: If they are not given, and the loader's dataset has no length.
    """
    if samples is None:
        samples = length_of(getattr(loader, "dataset", None))
        if samples is None:
            raise ValueError("cannot tell which samples to expect: give samples=, their number or their ids.")
    return list(range(samples)) if isinstance(samples, int) else list(samples)


def described(settings: Mapping[str, Any]) -> str:
    """Say which settings a loader was made with, as in "2 workers, batch_size=3"."""
    parts = []
    for name, value in settings.items():
        if name == "num_workers":
            parts.append(f"{value} worker{'' if value == 1 else 's'}")
        elif name == "world_size":
            parts.append(f"{value} rank{'' if value == 1 else 's'}")
        else:
            parts.append(f"{name}={value!r}")
    return ", ".join(parts) or "the default settings"


def _set_sampler_epoch(loader: Any, epoch: int) -> None:
    if isinstance(loader, torch_data.DataLoader):
        for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
