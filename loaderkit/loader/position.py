"""A position through data: what each kind of data brings to the Loader."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from loaderkit.datasets.bad_samples import BadSampleCount, Reported
from loaderkit.engine.description import Description
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.engines import describe_stream
from loaderkit.sampling.cursor import Cursor
from loaderkit.system.arrays import Int64Array
from loaderkit.system.cpus import Cpus, ranks_on_host
from loaderkit.system.world import World


class Position(ABC):
    """Where a loader stands in its data, and how it goes on from there.

    Between `begin` and `begin` the loader takes batches from the iterator that it
    was given, and calls `count` for each that it yields: one place counts, outside
    all prefetching.

    For a Trainer, which learns later than it fetches, a position remembers where it
    stood since `mark`, until that is forgotten.

    Who takes batches ahead, to copy them to a device, counts them as they are taken. He
    notes the place of the last one that he has handed on, and that is what is seen from outside.
    """

    def __init__(self, dataset: Any, config: LoaderConfig) -> None:
        self.dataset, self.config = dataset, config
        self.turn = 0  # an iterator of an earlier turn is over
        self.bad = BadSampleCount(config.bad_samples)
        self._begun = False  # whether a pass has started where it stands, or is left there
        self._loaded = -1  # in which turn it stands at a state that was loaded
        self._told = (-1, -1)  # in which turn a Trainer began an epoch last, and which
        self._ahead = 0  # epochs that the Trainer counts and nobody read
        self._said: set[str] = set()
        self._noted: tuple[int, Any] = (-1, None)  # in which turn, and the place
        self._found: tuple[int, str] | None = None

    @property
    def world(self) -> World:
        """Who shares the data, as found out now."""
        return self.config.world or World.detect()

    @property
    def num_workers(self) -> int:
        """Worker processes; where the settings say "auto", found out when it is first asked for."""
        return self._workers()[0]

    def describe(self) -> Description:
        """Say how batches are made."""
        return describe_stream(self.config, *self._workers())

    def _workers(self) -> tuple[int, str]:
        """Return how many worker processes there are to be, and why."""
        given = self.config.num_workers
        if given != "auto":
            return given, "num_workers"
        if self._found is None:
            cpus, ranks = Cpus.detect(), self.world.on_host or ranks_on_host()
            self._found = cpus.workers(ranks), f"auto: {cpus}, {ranks} rank{'s' * (ranks > 1)} on this host"
        return self._found

    @property
    def cursor(self) -> Cursor:
        """Where it stands: behind the last batch that was counted or, where some were taken ahead, handed on."""
        return self.cursor_at(self.seen())

    @abstractmethod
    def place(self) -> Any:
        """Return where it stands behind the last batch that was counted, as a value that means something to it alone."""

    @abstractmethod
    def cursor_at(self, place: Any) -> Cursor:
        """Return a place as a cursor; None is where it stands."""

    @abstractmethod
    def return_to(self, place: Any) -> None:
        """Stand at a place of this pass, which is left: the batches counted since were not handed on."""

    def note(self, place: Any) -> None:
        """Take note that what was handed on ends at a place; it holds until the position is moved by others."""
        self._noted = self.turn, place

    def seen(self) -> Any:
        """Return the place that was noted; None if none was, or it holds no longer."""
        turn, place = self._noted
        return place if turn == self.turn else None

    def settle(self) -> None:
        """Give up the batches that were taken ahead."""
        place = self.seen()
        if place is not None and place != self.place():
            self.return_to(place)

    @abstractmethod
    def length(self) -> int:
        """Return the batches of the epoch that it stands in.

        Raises:
            TypeError: If nobody knows.
        """

    @property
    @abstractmethod
    def step(self) -> int | None:
        """Samples of a full step of all ranks, the unit of `cursor.batches`; None if that has no unit in samples."""

    @abstractmethod
    def begin(self) -> Iterator[Any]:
        """Start a pass: at the place that was set, or at the start of the next epoch. Return its batches.

        Those taken ahead in an earlier pass have been given up by `settle`.
        """

    @abstractmethod
    def count(self, report: Reported | None) -> bool:
        """Stand behind the batch that was taken last, and say whether it was the epoch's last.

        Where it was, stand at the next epoch's start: Lightning stops at `len()` and never asks for more.

        Args:
            report: Of the batch's bad samples, if it had any.

        Raises:
            BadSamplesError: If there are too many of these.
        """

    def check_end(self) -> None:  # noqa: B027 - most need no check
        """Say that the batches ended before the epoch did, if so.

        Raises:
            RuntimeError: If they did.
        """

    def fail(self) -> None:
        """Take note that a batch could not be made: what works ahead may be beyond it."""
        self.turn += 1

    @abstractmethod
    def indices(self, epoch: int, batch: int) -> Int64Array:
        """Return which samples (B,) are in a batch of this rank.

        Raises:
            IndexError: If the epoch has no such batch.
            TypeError: If the data has no index.
        """

    @abstractmethod
    def seek(self, epoch: int, samples: int) -> None:
        """Stand in an epoch, behind so many samples of all ranks."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return where it stands as a state."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Stand where a state says."""

    @abstractmethod
    def follow(self, before: "Position") -> None:
        """Stand where the next pass of another position would begin, in whose place this one comes."""

    @abstractmethod
    def mark(self) -> int:
        """Begin to remember, where the next pass begins, and return its epoch."""

    @abstractmethod
    def rewind(self) -> None:
        """Stand at the mark."""

    @abstractmethod
    def state_after(self, batches: int, *, over: bool) -> dict[str, Any]:
        """Return the state so many batches after the mark, or that of the epoch's end if it is over there."""

    def forget(self, batches: int) -> None:  # noqa: B027 - nothing to forget where it is computed
        """Forget what comes before so many batches after the mark."""

    @abstractmethod
    def end_epoch(self, batches: int) -> None:
        """Stand where an epoch of a Trainer that had so many batches since the mark ends: no more of them were used."""

    def begin_epoch(self, epoch: int) -> None:
        """Follow a Trainer that begins an epoch and keeps the loader's state by itself."""
        resumes = self._loaded == self.turn
        if resumes and self._told == (self.turn, epoch - 1):
            # Resumed at an epoch's end under max_steps, Lightning ends that epoch once more, without a batch.
            self._ahead += 1
            self._begun = True
        self._follow_epoch(epoch - self._ahead)
        self._told = self.turn, epoch
        if resumes:
            self._loaded = self.turn

    @abstractmethod
    def _follow_epoch(self, epoch: int) -> None:
        """Stand in an epoch that a Trainer begins, if not there already."""

    @abstractmethod
    def close(self) -> None:
        """Stop the workers; a later pass starts them again."""

    def say(self, message: str) -> None:
        """Warn once."""
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, UserWarning, stacklevel=4)
