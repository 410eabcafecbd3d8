"""The position of a Loader in its data: one interface for each kind of data."""

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from loaderkit.datasets.bad_samples import BadSampleCount, Reported
from loaderkit.engine.description import Description
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.downloads import DownloadMeter, Downloads
from loaderkit.loader.same_on_ranks import differing
from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.plan import BatchKey
from loaderkit.sampling.skips import Skips
from loaderkit.system.arrays import Int64Array
from loaderkit.system.cpus import Cpus, ranks_on_host
from loaderkit.system.world import World, sharing_dimensions

P = TypeVar("P", default=Any)  # a point, which only the position itself understands


class Crew:
    """The ranks and workers that read the data, detected at first use."""

    def __init__(self, config: LoaderConfig) -> None:
        self._config = config

    @property
    def world(self) -> World:
        """The rank of this process and the number of ranks, as detected now."""
        return self._config.world or World.detect()

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return self._workers[0]

    @property
    def why(self) -> str:
        """The reason for `num_workers`."""
        return self._workers[1]

    @functools.cached_property
    def _workers(self) -> tuple[int, str]:
        given = self._config.num_workers
        if given != "auto":
            return given, "num_workers"
        cpus, world = Cpus.detect(), self.world
        ranks = world.on_host or ranks_on_host()
        if world.group:  # ranks outside the group share the host's CPUs too
            ranks = max(ranks, ranks_on_host())
        return cpus.workers(ranks), f"auto: {cpus}, {ranks} rank{'s' * (ranks > 1)} on this host"


class IndexedBatches(Protocol):
    """Computes which samples a batch has, for data with an index: a cursor is enough."""

    def indices(self, epoch: int, batch: int) -> Int64Array:
        """Return the sample indices (B,) of a batch of this rank.

        Raises:
            IndexError: If the epoch has no such batch.
        """

    def key(self, cursor: Cursor, ahead: int) -> BatchKey:
        """Return the key of this rank's batch that follows `ahead` batches after a cursor.

        Raises:
            IndexError: If the cursor's epoch has no such batch.
        """

    def size_of(self, epoch: int) -> int:
        """Return the number of positions in the order of an epoch."""

    def replay(self, cursor: Cursor, ahead: int) -> Any:
        """Make this rank's batch that follows `ahead` batches after a cursor; see `Loader.replay`."""


class ByIndex(Protocol):
    """What only data with an index can do."""

    @property
    def plan(self) -> IndexedBatches:
        """Which samples are in which batch."""

    def skip(self, epoch: int, steps: Sequence[range], samples: Sequence[range]) -> None:
        """Leave out those steps and samples of an epoch that are not read yet; see `Loader.skip`."""


class PassLog(Protocol[P]):
    """Tells a StepLog which batches were counted since its last record."""

    def mark(self, point: P) -> Any:
        """Return a mark at a point of the present pass, for `since`."""

    def since(self, mark: Any, now: P) -> tuple[list[P], bool]:
        """Return the points before the batches that were counted from a mark to a point.

        Args:
            mark: The mark; None if it is unknown.
            now: The point.

        Returns:
            The points, and whether they continue from the mark. They do not if something has moved the position to
            another place inside an epoch: the points are then those after that move.
        """


class Position(ABC, Generic[P]):
    """Where a Loader stands in its data, and how it goes on from there.

    A pass starts with `begin` and ends with the next `begin`. The Loader takes batches from the iterator that `begin`
    returns, and calls `count` for each batch before it yields it. Nothing else counts, so prefetching cannot move a
    position.

    A point is the position between two batches, as a value that only the position itself understands. A caller may
    keep points, and later ask for their states or return to them. A DataModule does so because its Trainer fetches
    batches before it learns from them. A DeviceLoader does so because it takes batches ahead of the user: it notes the point of
    the last batch that it yielded, and `cursor` and `state` then report that point.

    Attributes:
        turn: Increases when anything but `count` moves the position. Iterators of an earlier turn are then over.
        begun: Whether a pass has started at this point, or was left here. The next pass then starts the next epoch.
        bad: The count of bad samples.
        meter: What the data has downloaded.
        prepared: Whether an integration wraps the Loader for Accelerate, which does not know a Loader's epochs.
        resumed: Whether a state was loaded and no pass has started since.
        passes: Which batches were counted lately, for a StepLog.
    """

    passes: PassLog[P]

    def __init__(self, dataset: Any, config: LoaderConfig) -> None:
        self.dataset, self.config, self.crew = dataset, config, Crew(config)
        self.turn = 0
        self.begun = False
        self.prepared = False
        self.resumed = False
        self.bad = BadSampleCount(config.bad_samples)
        self.meter = DownloadMeter(dataset)
        self._said: set[str] = set()
        self._compared = False  # with what other ranks read, since the last state was loaded
        self._yielded_at: tuple[int, P | None] = (-1, None)  # the turn, and the point

    # Passes

    @abstractmethod
    def begin(self) -> Iterator[Any]:
        """Start a pass here, or at the next epoch's start if a pass was left here. Return its batches."""

    @abstractmethod
    def count(self, report: Reported | None) -> bool:
        """Move past the batch that was taken last, and say whether it ends the epoch.

        After the epoch's last batch the position is the next epoch's start: Lightning stops at `len()` and never asks
        for more.

        Raises:
            BadSamplesError: If the report of the batch's bad samples makes them too many.
        """

    def check_end(self) -> None:
        """Raise a RuntimeError if the batches have ended before the epoch's end."""

    def why_over(self) -> str | None:
        """Say why no later epoch will have a batch either; None if one may have."""
        return None

    def fail(self, error: BaseException) -> None:
        """End the pass because a batch failed: workers may have read past it."""
        self.turn += 1

    @abstractmethod
    def close(self) -> None:
        """Stop the workers; a later pass starts them again."""

    @abstractmethod
    def describe(self) -> Description:
        """Describe how batches are made."""

    def downloads(self) -> Downloads | None:
        """Return what the data has downloaded; None if nothing."""
        return self.meter.look(self._shards_ahead)

    def _shards_ahead(self) -> int | None:
        """Count the shards that come next and are in the cache; None if that is unknown."""
        return None

    # Points

    @abstractmethod
    def point(self) -> P:
        """Return the point after the last counted batch."""

    @abstractmethod
    def epoch_after(self, point: P) -> P:
        """Return the start of the next epoch if a point is inside an epoch; else the point itself."""

    def upcoming(self) -> P:
        """Return the point where the next pass starts."""
        return self.epoch_after(self.point()) if self.begun else self.point()

    @abstractmethod
    def go_to(self, point: P, *, left: bool = False) -> None:
        """Return to a point. If its pass was `left` there, the next pass starts the next epoch."""

    @abstractmethod
    def cursor_at(self, point: P | None) -> Cursor:
        """Return a point as a cursor; None is the current point."""

    @abstractmethod
    def state_at(self, point: P, nearby: Iterable[P] = ()) -> dict[str, Any]:
        """Return the state of a point.

        Another rank may stand a step before or after this one, and ask for the `nearby` points.
        """

    def note_yielded(self, point: P) -> None:
        """Report this point as the current one, until something moves the position."""
        self._yielded_at = self.turn, point

    def yielded(self) -> P | None:
        """Return the noted point; None if there is none, or the position has moved."""
        turn, point = self._yielded_at
        return point if turn == self.turn else None

    def discard_ahead(self) -> None:
        """Return to the noted point, if batches were taken beyond it."""
        point = self.yielded()
        if point is not None and point != self.point():
            self.go_to(point, left=True)

    # State

    @property
    def cursor(self) -> Cursor:
        """The position after the last yielded batch."""
        return self.cursor_at(self.yielded())

    def state(self) -> dict[str, Any]:
        """Return the state after the last yielded batch."""
        return self.state_at(self.yielded() or self.point())

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go to the position that a state names; the next pass logs where that is."""
        self.load(state)
        self.resumed = True
        self._compared = False

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Go to the position that a state names."""

    @abstractmethod
    def seek(self, epoch: int, samples: int) -> None:
        """Go to an epoch, after this many samples of all ranks."""

    @abstractmethod
    def follow(self, before: "Position") -> None:
        """Go to the start of the next pass of the position that this one replaces."""

    # Data

    @abstractmethod
    def length(self) -> int:
        """Return the number of batches in the current epoch; raise a TypeError if it is unknown."""

    @property
    @abstractmethod
    def repeats(self) -> bool:
        """Whether each epoch has the same batches in the same order, as far as the Loader decides."""

    @property
    @abstractmethod
    def step(self) -> int | None:
        """Samples in a full step of all ranks (see `Plan.step`); None for streams, whose steps have no fixed size."""

    @abstractmethod
    def indexed(self, asked: str) -> "ByIndex":
        """Return what only data with an index can do; raise a TypeError that says why a stream cannot do what was `asked`."""

    @property
    def skips(self) -> Skips:
        """What the run leaves out."""
        return Skips()

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name != "_kept"}  # generators of this process
        return kept | {"begun": False}  # the copy has no pass, so its next one continues here

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if (point := self.yielded()) is not None:  # the original took batches beyond it
            self.go_to(point)

    def check_ranks(self, tell: Callable[[], Mapping[str, str]]) -> None:
        """Warn if ranks that may have to read the same data read different data, or if those that share data do not agree on it.

        `tell` returns what this rank reads, by name.
        """
        if not self._compared:
            self._compared, config = True, self.config
            kind = f"{type(self.dataset).__name__}, {config.batch_size}, {config.shuffle}"
            if (remark := differing(kind, self.crew.world, tell)) is not None:
                self.say(remark)
        if self.config.world is None and (shared := sharing_dimensions()):
            named = ", ".join(f"{name!r} ({size} ranks)" for name, size in shared.items())
            self.say(
                f"Loader: torch.distributed has a DeviceMesh with the dimension {named}, and each of the "
                f"{self.crew.world.size} ranks reads data of its own. If the ranks along it train on the same batches, give the "
                "data-parallel dimensions: world=mesh['dp']. If not, give world=loaderkit.World.detect()."
            )

    def say(self, message: str) -> None:
        """Warn once."""
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, UserWarning, stacklevel=4)
