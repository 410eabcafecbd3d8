"""A position through an ordinary IterableDataset: each worker's part is a lane that can only be read from its start.

What can be promised for such data depends on the data. It has to split itself over ranks and workers, as in a
`torch.utils.data.DataLoader`, and to give the same samples when a pass is read again. Then a run resumes exactly, on as
many ranks and workers: by reading again what was read (in the workers, without collating), or, if it has
`state_dict()` and `load_state_dict()` that are exact, from its own state.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch.utils.data as torch_data

from loaderkit.datasets.hf import restores_its_place, state_of_start
from loaderkit.engine.torch import Hidden
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.streams.position import LaneWalk
from loaderkit.loader.streams.shards import check_unindexed
from loaderkit.loader.streams.state import RankCursor
from loaderkit.loader.streams.workers import Item, collated, run_lanes
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.samples import SampleSeeds
from loaderkit.system.batch_memory import BufferPool


class Part(NamedTuple):
    """Where a worker's part stands."""

    cycle: int = 0  # how often it has been read to its end
    samples: int = 0  # read since
    state: Any = None  # the dataset's own, there; None for its first


class IterablePosition(LaneWalk):
    """Goes along this rank's workers, which take turns."""

    _place: ClassVar[Any] = Part

    def __init__(self, dataset: Any, config: LoaderConfig) -> None:
        self._first = _plain(dataset, state_of_start(dataset)) if _is_stateful(dataset) else None
        self._moves_dataset = False  # its own state, by reading it in this process
        super().__init__(dataset, config)

    def close(self) -> None:
        super().close()
        if self._moves_dataset:  # else another loader of it would take that for its start
            self._moves_dataset = False
            self.dataset.load_state_dict(_plain(self.dataset, self._first))

    def _lanes(self) -> int:
        return self.world.size * self._turns

    @property
    def _turns(self) -> int:
        return max(1, self.num_workers)

    def _identity(self) -> dict[str, Any]:
        own = getattr(self.dataset, "fingerprint", None)
        return {
            "dataset": f"{type(self.dataset).__qualname__} ({own()})"
            if callable(own)
            else type(self.dataset).__qualname__,
            "seed": self.config.seed,
            "number of ranks": self.world.size,
            "number of workers": self._turns,
            "resume": "by its own state" if _is_stateful(self.dataset) else "by reading again",
            "epochs": "of steps" if self.config.steps else "of the stream",
        }

    def _ended(self, standing: RankCursor) -> RankCursor:
        ended = super()._ended(standing)
        if self.config.steps or ended is standing:
            return ended
        # A pass that was read to its end has left the dataset's own state for the next one.
        known = tuple(
            old if old.cycle == new.cycle and not old.samples else new
            for old, new in zip(standing.places, ended.places, strict=True)
        )
        return ended._replace(places=known)

    def _run(self, places: Sequence[Any], cycle: int, turn: int) -> Iterator[Item]:
        self._moves_dataset = self._first is not None and not self.num_workers
        run = PartRun(
            dataset=self.dataset,
            config=self.config,
            first=self._first,
            rank=self.world.rank,
            places=places,
            cycle=cycle,
            turn=turn,
        )
        return run_lanes(run, self.config, self.config.seed, self.num_workers)

    def _check_settings(self) -> None:
        check_unindexed(self.dataset, self.config, "it orders itself")
        if self.config.bad_samples.policy != "raise":
            raise ValueError(
                f"loader: bad_samples={self.config.bad_samples.policy!r}, and {type(self.dataset).__name__} can't be read on "
                "behind a sample that failed: an iterator that has raised is over. Let it leave out itself what it can't "
                "read, or make an lk.StreamDataset of it."
            )

    def _no_data(self) -> str:
        return f"rank {self.world.rank} of {self.world.size} found no samples in {type(self.dataset).__name__}"


@dataclass(frozen=True, kw_only=True)
class PartRun(torch_data.IterableDataset[Any]):
    """What runs in a worker: its part, from where it stands to its end.

    Args:
        dataset: The data.
        config: Batch size, collate, tail and seed.
        first: The dataset's own state before it was read.
        rank: This process's.
        places: Where the rank's workers stand; those of a later cycle are over.
        cycle: The cycle to be read.
        turn: The worker whose turn it is.
        buffers: What large batches are made in.
    """

    dataset: Any
    config: LoaderConfig
    first: Any
    rank: int
    places: Sequence[Part]
    cycle: int
    turn: int
    buffers: BufferPool = field(default_factory=BufferPool)

    def __iter__(self) -> Iterator[Hidden]:
        info = torch_data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return map(Hidden, self.items(worker, workers))

    def items(self, worker: int, workers: int) -> Iterator[Item | None]:
        """Yield a batch in each of the worker's turns; None where it has none."""
        if worker < self.turn:
            yield None
        yield from self._part(worker)
        while workers > 1:  # torch takes from the workers in turn, as long as all of them give
            yield None

    def _part(self, worker: int) -> Iterator[Item]:
        place, size = self.places[worker], self.config.batch_size or 1
        if place.cycle != self.cycle:
            return
        reader = _Reader(self, worker, place, size)
        drops, more = self.config.tail_policy == "drop", True
        while more:
            start = reader.taken
            samples = reader.take(size)
            if not samples or (drops and len(samples) < size):
                yield Item(worker, reader.end, 0, None)
                return
            # The end is found out with the last batch: whoever holds that one knows that it is.
            more = reader.fill(size if drops else 1)
            with reader.seeds(start, len(samples)) as seeds:
                batch = collated(self.config, self.buffers, samples, seeds)
            yield Item(worker, reader.place if more else reader.end, len(samples), batch)


class _Reader:
    """Reads a part from a place on, each sample under its own seed.

    Raises:
        ValueError: If it has fewer samples than were read before.
    """

    def __init__(self, run: PartRun, worker: int, place: Part, size: int) -> None:
        self._run, self._worker, self._size = run, worker, size
        self._source: Iterator[Any] | None = None
        self._stateful = _is_stateful(run.dataset)
        self._place = place
        self._states = {place.samples: place.state}  # of the dataset, by the samples read
        self.taken, self._read = place.samples, place.samples
        self._samples: list[Any] = []
        self._ended = False
        if not self._stateful:
            self._replay(place.samples)

    @property
    def place(self) -> Part:
        return Part(self._run.cycle, self.taken, self._states[self.taken] if self._stateful else None)

    @property
    def end(self) -> Part:
        """The next cycle's start."""
        return Part(self._run.cycle + 1, 0, _state_of(self._run.dataset))

    def take(self, count: int) -> list[Any]:
        self.fill(count)
        samples, self._samples = self._samples[:count], self._samples[count:]
        self.taken += len(samples)
        self._states = {number: state for number, state in self._states.items() if number >= self.taken}
        return samples

    def fill(self, count: int) -> bool:
        """Read until so many samples can be taken; say whether they can."""
        missing = count - len(self._samples)
        if missing > 0 and not self._ended:
            with self.seeds(self._read, missing) as seeds:
                for row in range(missing):
                    seeds.enter(row)
                    try:
                        self._samples.append(next(self._open()))
                    except StopIteration:
                        self._ended = True
                        break
                    except Exception as error:
                        error.add_note(
                            f"loaderkit: raised while reading sample {self._read} of rank {self._run.rank}, worker "
                            f"{self._worker}."
                        )
                        raise
                    self._read += 1
                    if self._stateful and (self._read - self._place.samples) % self._size == 0:
                        self._states[self._read] = _state_of(self._run.dataset)
        return len(self._samples) >= count

    def seeds(self, start: int, count: int) -> SampleSeeds:
        run, numbers = self._run, np.arange(start, start + count, dtype=np.int64)
        words = hash_positions(numbers, "iterable", run.config.seed, run.cycle, run.rank, self._worker)
        return SampleSeeds(words, restore=torch_data.get_worker_info() is None)

    def _open(self) -> Iterator[Any]:
        if self._source is None:
            run, state = self._run, self._place.state
            if callable(set_epoch := getattr(run.dataset, "set_epoch", None)):
                set_epoch(run.cycle)
            if self._stateful:
                run.dataset.load_state_dict(json.loads(json.dumps(run.first if state is None else state)))
            self._source = iter(run.dataset)
        return self._source

    def _replay(self, samples: int) -> None:
        self.taken = self._read = 0
        while self.taken < samples and self.take(min(self._size, samples - self.taken)):
            pass
        if self.taken < samples:
            raise ValueError(
                f"cannot resume: {samples:,} samples of rank {self._run.rank}, worker {self._worker} were read before, and "
                f"now there are {self.taken:,}. The data has changed: restore it, or start a new epoch with "
                "loader.seek(epoch=...)."
            )


def _is_stateful(dataset: Any) -> bool:
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict") and restores_its_place(dataset)


def _state_of(dataset: Any) -> Any:
    """Return a copy of a dataset's own state, None if it has none.

    Raises:
        TypeError: If it is not plain: it goes into checkpoints and to other processes.
    """
    if not _is_stateful(dataset):
        return None
    return _plain(dataset, dataset.state_dict())


def _plain(dataset: Any, state: Any) -> Any:
    try:
        copy = json.loads(json.dumps(state))
    except (TypeError, ValueError):
        copy = None
    if copy != state:
        raise TypeError(
            f"loader: {type(dataset).__name__}.state_dict() returned {state!r}, wanted what JSON gives back unchanged: "
            "numbers, strings, lists, and dicts with strings for keys."
        )
    return copy
