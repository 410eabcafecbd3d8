"""Draw batches from a loader as a training does: like a Lightning Trainer, or in a for loop."""

import copy
import json
import pickle
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
import torch.utils.data as torch_data

from loaderkit.system.world import World
from loaderkit.testing.compare import LawError, numbered, raised

MakeLoader = Callable[..., Iterable[object]]
OnEpoch = Callable[[Any, int], None]
Consumer = Literal["trainer", "loop"]

NO_STATE = " The loader has no state_dict() and load_state_dict(): the resumed run starts from the beginning."

_END = object()


def run_epoch(
    loader: object,
    epoch: int,
    *,
    consumer: Consumer = "loop",
    done: int = 0,
    first: bool = True,
    on_epoch: OnEpoch | None = None,
) -> Iterator[object]:
    """Yield an epoch's batches. After each one, the loader's state is the one that a checkpoint saves.

    The batches are copies, because a loader may reuse its memory for the next batch.

    Args:
        loader: Any loader.
        epoch: The number that a sampler's `set_epoch` gets.
        consumer: "trainer" draws like Lightning: it stops at `len()` without asking for more. Without `len()` it fetches one
            batch ahead. It sets a sampler's epoch after the process's first `iter()`. "loop" is a for loop.
        done: Number of the epoch's batches that an earlier process consumed.
        first: Whether this is the process's first epoch.
        on_epoch: Called with (loader, epoch) before the epoch.
    """
    return map(_copied, _drawn(loader, epoch, consumer, done, first, on_epoch))


def _drawn(
    loader: Any, epoch: int, consumer: Consumer, done: int, first: bool, on_epoch: OnEpoch | None
) -> Iterator[object]:
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


def _copied(batch: object) -> object:
    try:
        return copy.deepcopy(batch)
    except Exception:  # this batch type can't be copied
        return batch


def make(make_loader: MakeLoader, world: World | None = None, **changes: object) -> Any:
    """Make a loader, with `world=` unless it is None."""
    return make_loader(**changes) if world is None else make_loader(world=world, **changes)


def ranks_of(world_size: int | None) -> list[World | None]:
    """Return the world of each rank; [None] without a size: a single process that gets no `world=`."""
    return [None] if world_size is None else [World(rank, world_size) for rank in range(world_size)]


def length_of(loader: Any) -> int | None:
    """Return `len(loader)`, or None if the loader has no length."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def has_state(loader: object) -> bool:
    """Return whether a loader can save and load its state."""
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def through_file(state: object) -> Any:
    """Return a state as a checkpoint restores it: through JSON if that is exact, else through pickle."""
    try:
        copy = json.loads(json.dumps(state))
        if copy == state:
            return copy
    except (TypeError, ValueError):
        pass
    return pickle.loads(pickle.dumps(state))


def load(loader: Any, state: object) -> None:
    """Load a state as from a checkpoint, without a Loader's warning that it cannot tell whether the data is the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Loader: the state was loaded, and only")
        loader.load_state_dict(through_file(state))


@contextmanager
def process(seed: int) -> Iterator[None]:
    """Seed the global generators inside the `with`, as in a new process, and restore them after it."""
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
    """Return the states of the three global generators."""
    return {
        "torch": torch.default_generator.get_state(),
        "numpy": np.random.get_state(legacy=True),
        "random": random.getstate(),
    }


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Turn the loader's errors into a LawError that names the action."""
    try:
        yield
    except LawError:
        raise
    except Exception as error:
        raise LawError(f"{what} {raised(error)}.") from error


def expected_samples(samples: Any, loader: object) -> list[object]:
    """Return the ids that an epoch must deliver: `samples`, or all indices of the loader's dataset."""
    if samples is None:
        samples = length_of(getattr(loader, "dataset", None))
        if samples is None:
            raise ValueError("cannot tell which samples to expect. Give samples=, their number or their ids.")
    return list(range(samples)) if isinstance(samples, int) else list(samples)


def described(settings: Mapping[str, Any]) -> str:
    """Describe a loader's settings, such as "2 workers, batch_size=3"."""
    parts = []
    for name, value in settings.items():
        noun = {"num_workers": "worker", "world_size": "rank"}.get(name)
        parts.append(numbered(value, noun) if noun else f"{name}={value!r}")
    return ", ".join(parts) or "the default settings"


def _set_sampler_epoch(loader: object, epoch: int) -> None:
    if isinstance(loader, torch_data.DataLoader):
        for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
