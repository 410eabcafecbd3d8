"""The lanes of an ordinary IterableDataset: one for each worker, which can be read only from its start.

The dataset must split itself over ranks and workers, as in a `torch.utils.data.DataLoader`, and must give the same
samples when a pass is read again. A run then resumes exactly on the same number of ranks and workers: the workers read
again what was read before, without collating. If the dataset has an exact `state_dict()` and `load_state_dict()`, the
run resumes from that state instead. The loader's state holds it as JSON, checked only by the checksum.
"""

import contextlib
import inspect
import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from loaderkit.datasets.hf import as_declared, epoch_of, restores_its_place, state_of_start
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.position import Crew
from loaderkit.loader.streams.lanes import Item, LaneTask, check_no_index, run_task
from loaderkit.loader.streams.own_state import decode, encode
from loaderkit.loader.streams.state import LanePlace
from loaderkit.sampling.fingerprint import fingerprint_of
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.private import Found, PrivateGenerators, private_generators
from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.seeding.worker_seeds import workers_seed
from loaderkit.system.shared_numbers import own_numbers
from loaderkit.system.state import COUNT, EPOCH
from loaderkit.system.worker_info import in_worker_process

_END = object()


class WorkerPlace(NamedTuple):
    """How far a worker has read its part of the dataset."""

    cycle: int = 0  # how often it has read to the end
    samples: int = 0  # read since then
    state: str | None = None  # the dataset's own state there, as JSON; None for the state before the first read


class WorkerLanes:
    """The lanes of an IterableDataset: one for each worker of each rank."""

    def __init__(self, dataset: Any, config: LoaderConfig, crew: Crew) -> None:
        self._dataset, self._config, self._crew = dataset, config, crew
        _check_state_dict(dataset)
        self._first = _first_state(dataset) if _is_stateful(dataset) else None
        self._moves_dataset = False  # whether reading in this process changes the dataset's own state
        check_no_index(dataset, config, "it decides its order itself")
        if config.bad_samples.policy != "raise":
            raise ValueError(
                f"loader: bad_samples={config.bad_samples.policy!r}, and {type(dataset).__name__} cannot be read past a "
                "sample that failed: its iterator ends when it raises. Let the dataset leave out what it cannot read, or "
                "write it as an lk.StreamDataset."
            )

    def count(self) -> int:
        return self._crew.world.size * self._workers

    def identity(self) -> dict[str, str | int]:
        own, name = fingerprint_of(self._dataset), type(self._dataset).__qualname__
        return {
            "dataset": f"{name} ({own})" if own else name,
            "seed": self._config.seed,
            "number of ranks": self._crew.world.size,
            "number of workers": self._workers,
            "resume": "by its own state" if _is_stateful(self._dataset) else "by reading again",
            "epochs": "of steps" if self._config.steps else "of the stream",
        }

    def told(self) -> dict[str, str]:
        return {}  # the dataset splits itself over ranks, so each may have another one

    def place(self, cycle: int = 0, samples: int = 0, state: str | None = None) -> WorkerPlace:
        """Return a place. At the start it has the dataset's first state: another loader may have moved the dataset."""
        return WorkerPlace(cycle, samples, self._first if state is None and not samples else state)

    def flaw(self, lane: int, place: Sequence[Any]) -> str | None:
        if len(place) != len(WorkerPlace._fields) or not EPOCH.holds(place[0]) or not COUNT.holds(place[1]):
            return "two counts, cycle and samples, and the dataset's own state"
        cycle, samples, state = place
        if not _is_stateful(self._dataset):
            return None if state is None else "no state, because the dataset has none"
        try:
            own = None if state is None else decode(state)
        except Exception:  # whatever a damaged text leads to
            return "the dataset's own state as JSON"
        if samples and epoch_of(self._dataset) is not None and isinstance(own, dict) and own.get("epoch") != cycle:
            return f"a state in epoch {cycle}: the dataset leaves out one of another epoch, and would start again"
        return None

    def read(self, lanes: range, places: Sequence[LanePlace], cycle: int, turn: int) -> Iterator[Item]:
        workers = self._crew.num_workers
        self._moves_dataset = self._first is not None and not workers
        if workers:  # before they start: any memory that they share with the dataset then has the epoch
            _set_epoch(self._dataset, cycle)
        task = WorkerTask(
            dataset=self._dataset,
            config=self._config,
            first=self._first,
            rank=self._crew.world.rank,
            places=places,
            cycle=cycle,
            turn=turn,
            private=self.private(),
        )
        return run_task(task, workers_seed(self._config.seed, task.rank, cycle), workers)

    def next_cycle(self, places: Sequence[Any], cycle: int) -> tuple[LanePlace, ...]:
        # A worker that has read to the end has already recorded the dataset's own state for the next cycle.
        return tuple(old if old.cycle == cycle and not old.samples else WorkerPlace(cycle) for old in places)

    def batches(self) -> int | None:
        # As in torch, the length is that of this rank. Nobody knows how the workers share it; evenly is the best guess.
        if not hasattr(self._dataset, "__len__"):
            return None
        each, longer = divmod(len(self._dataset), self._workers)
        size = self._config.batch_size or 1
        spare = 0 if self._config.tail_policy == "drop" else size - 1
        return (self._workers - longer) * ((each + spare) // size) + longer * ((each + 1 + spare) // size)

    def no_samples(self) -> str:
        world = self._crew.world
        return f"rank {world.rank} of {world.size} found no samples in {type(self._dataset).__name__}"

    def idle_workers(self, lanes: int) -> None:
        return None

    def private(self) -> PrivateGenerators:
        config = self._config
        data: dict[str, object] = {"collate_fn": config.collate_fn}
        if config.private_generators is not None:
            data = {"dataset": self._dataset, **data}
        return PrivateGenerators(data, config.private_generators or "seed", config.seeders)

    def left(self) -> list[Found]:
        return private_generators(dataset=self._dataset) if self._config.private_generators is None else []

    def close(self) -> None:
        if self._moves_dataset:  # if not restored, another loader would start from here
            self._moves_dataset = False
            _load(self._dataset, self._first)

    @property
    def _workers(self) -> int:
        return max(1, self._crew.num_workers)


@dataclass(frozen=True, kw_only=True)
class WorkerTask(LaneTask):
    """Reads a worker's lane, from its place to its end."""

    dataset: Any
    first: str | None  # the dataset's own state before the first read; None if it had none then
    rank: int

    @property
    @override
    def data(self) -> object:
        return self.dataset

    @override
    def items(self, worker: int, workers: int) -> Iterator[Item | None]:
        if worker < self.turn:
            yield None
        yield from self._batches(worker)
        while workers > 1:  # torch takes from the workers in turn until one of them ends
            yield None

    def _batches(self, worker: int) -> Iterator[Item]:
        place, size = self.places[worker], self.config.batch_size or 1
        if place.cycle != self.cycle:
            return
        reader = _WorkerReader(self, worker, place, size)
        drops, more = self.config.tail_policy == "drop", True
        while more:
            start = reader.given
            samples = reader.take(size)
            if not samples or (drops and len(samples) < size):
                yield Item(worker, reader.end, 0, None)
                return
            # The last batch carries the lane's end, so its receiver knows that no other follows.
            more = reader.fill(size if drops else 1)
            with reader.seeds(start, len(samples)) as seeds:
                batch = self.make_batch(samples, seeds)
            yield Item(worker, reader.place if more else reader.end, len(samples), batch)


class _WorkerReader:
    """Reads a worker's samples from a place on, each under its own seed."""

    def __init__(self, task: WorkerTask, worker: int, place: WorkerPlace, size: int) -> None:
        self._task, self._worker, self._size = task, worker, size
        self._iterator: Iterator[object] | None = None
        self._typed = as_declared(task.dataset)
        self._stateful = _is_stateful(task.dataset)
        self._place = place
        self._states = {place.samples: place.state}  # of the dataset, by the number of samples read
        self.given, self._read = place.samples, place.samples
        self._samples: list[object] = []
        self._ended = False
        if not self._stateful:
            self._replay(place.samples)

    @property
    def place(self) -> WorkerPlace:
        return WorkerPlace(self._task.cycle, self.given, self._states[self.given] if self._stateful else None)

    @property
    def end(self) -> WorkerPlace:
        """The place at the start of the next cycle."""
        return WorkerPlace(self._task.cycle + 1, 0, _state_of(self._task.dataset))

    def take(self, count: int) -> list[object]:
        self.fill(count)
        samples, self._samples = self._samples[:count], self._samples[count:]
        self.given += len(samples)
        self._states = {number: state for number, state in self._states.items() if number >= self.given}
        return samples

    def fill(self, count: int) -> bool:
        """Read until this many samples can be taken; say whether they can."""
        missing = count - len(self._samples)
        if missing > 0 and not self._ended:
            with self.seeds(self._read, missing) as seeds:
                for row in range(missing):
                    seeds.enter(row)
                    begins = self._iterator is None
                    try:
                        if begins and self._stateful:
                            self._open()
                            seeds.enter(row)  # again: loading a state may set the global generators
                        self._samples.append(self._typed(next(self._open())))
                        if begins:
                            _check_epoch(self._task.dataset, self._task.cycle)  # the first sample's read applies it
                    except StopIteration:
                        self._ended = True
                        break
                    except Exception as error:
                        error.add_note(
                            f"loaderkit: raised while reading sample {self._read} of rank {self._task.rank}, worker "
                            f"{self._worker}."
                        )
                        raise
                    self._read += 1
                    if self._stateful and (self._read - self._place.samples) % self._size == 0:
                        self._states[self._read] = _state_of(self._task.dataset)
        return len(self._samples) >= count

    def seeds(self, start: int, count: int) -> SampleSeeds:
        task, numbers = self._task, np.arange(start, start + count, dtype=np.int64)
        words = hash_positions(numbers, "iterable", task.config.seed, task.cycle, task.rank, self._worker)
        return SampleSeeds(words, restore=not in_worker_process())

    def _open(self) -> Iterator[object]:
        if self._iterator is None:
            task, place = self._task, self._place
            _set_epoch(task.dataset, task.cycle)
            self._iterator = self._iter_from(place.state)
            if place.state is not None and not place.samples:
                first = next(self._iterator, _END)
                if first is not _END:
                    self._iterator = itertools.chain([first], self._iterator)
                elif _state_of(task.dataset) == place.state:
                    # The state of the dataset's end: it would give no sample ever again.
                    self._iterator = self._iter_from(None)
        return self._iterator

    def _iter_from(self, state: str | None) -> Iterator[object]:
        dataset = self._task.dataset
        if not self._stateful:
            return iter(dataset)
        state = self._task.first if state is None else state
        try:
            _load(dataset, state)
        except Exception:  # some datasets can load a state only after iter()
            iterator: Iterator[object] = iter(dataset)
            _load(dataset, state)
            return iterator
        iterator = iter(dataset)
        if iterator is dataset:  # iter() may have gone back to the start
            _load(dataset, state)
        return iterator

    def _replay(self, samples: int) -> None:
        """Read again what was read before the place."""
        self.given = self._read = 0
        while self.given < samples and self.take(min(self._size, samples - self.given)):
            pass
        if self.given < samples:
            raise ValueError(
                f"cannot resume: {samples:,} samples of rank {self._task.rank}, worker {self._worker} were read before, and "
                f"now there are {self.given:,}. The data has changed: restore it, or start a new epoch with "
                "loader.seek(epoch=...)."
            )


def _set_epoch(dataset: object, epoch: int) -> None:
    """Call a dataset's `set_epoch`, if it has one.

    A child process first copies the numbers in shared memory that this call changes, so it does not change other
    processes'.
    """
    found = getattr(dataset, "set_epoch", None)
    set_epoch: Callable[[int], object] = found if callable(found) else lambda _: None
    if multiprocessing.parent_process() is not None and (callable(found) or _is_stateful(dataset)):
        own_numbers(dataset, lambda: set_epoch(epoch), lambda: _told_by(dataset))
    set_epoch(epoch)
    _check_epoch(dataset, epoch)


def _check_epoch(dataset: object, epoch: int) -> None:
    """Refuse to read a stream of another epoch: workers would not share its shards, and its state would not be loaded."""
    if (found := epoch_of(dataset)) not in (None, epoch):
        raise RuntimeError(
            f"loader: {type(dataset).__name__} is in epoch {found} after set_epoch({epoch}): something else sets it, in memory "
            "that processes share. Leave its epochs to the Loader, or give each process a dataset of its own."
        )


def _told_by(dataset: Any) -> str | None:
    """Return a dataset's present state as JSON; None if it has none, or has one only after `iter()`."""
    if _is_stateful(dataset):
        with contextlib.suppress(Exception):  # it may have a state only after iter()
            return encode(dataset.state_dict())
    return None


def _is_stateful(dataset: object) -> bool:
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict") and restores_its_place(dataset)


def _check_state_dict(dataset: Any) -> None:
    """Refuse a dataset whose `state_dict` needs arguments: only a loader made for it could give them."""
    if not _is_stateful(dataset):
        return
    try:
        inspect.signature(dataset.state_dict).bind()
    except ValueError:
        return  # it has no signature
    except TypeError as error:
        way_out = (
            "It has a length and an index, so give the Loader lk.ConcatDataset([dataset])."
            if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
            else "Give the Loader a dataset whose state_dict() takes none, or that has no state_dict."
        )
        raise TypeError(
            f"loader: {type(dataset).__name__}.state_dict takes arguments ({error}), wanted none. {way_out}"
        ) from None


def _first_state(dataset: object) -> str | None:
    """Return the state of a dataset before its first read; None if it has a state only after `iter()`."""
    try:
        state = state_of_start(dataset)
    except Exception:
        return None  # if the method is broken, reading raises its error
    return _to_json(dataset, state)


def _state_of(dataset: Any) -> str | None:
    """Return a dataset's own state as JSON; None if it has none."""
    return _to_json(dataset, dataset.state_dict()) if _is_stateful(dataset) else None


def _load(dataset: Any, state: str | None) -> None:
    if state is not None:
        dataset.load_state_dict(decode(state))


def _to_json(dataset: object, state: object) -> str:
    try:
        return encode(state)
    except TypeError as error:
        raise TypeError(f"loader: {type(dataset).__name__}.state_dict() returned {state!r}: it has {error}.") from None
