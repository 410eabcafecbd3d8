"""Verbs of streams that take, skip, shuffle or batch samples in each lane."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderkit.datasets.streams.lane import Lane, LaneSpec, Place
from loaderkit.datasets.streams.pulled import PulledLane
from loaderkit.datasets.streams.samples import Failed, PendingSample, Step, apply_steps, seeds_of, with_steps
from loaderkit.datasets.streams.verb import Below, flaw_below
from loaderkit.seeding.keys import hash_positions, mixed_word
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import plain_integer


@dataclass(frozen=True)
class Part:
    """The first `count` samples over all lanes, or all but these. Each lane that has a shard gives an equal part."""

    count: int
    skips: bool  # the first samples, or takes them

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", plain_integer(self.count))
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 0:
            raise ValueError(f"{self}: wanted an integer of at least 0.")

    def __str__(self) -> str:
        return f"{'skip' if self.skips else 'take'}({self.count!r})"

    def order(self) -> str:
        return f"{self}-1"

    def lane(self, below: Below, spec: LaneSpec) -> Lane:
        return (_SkipLane if self.skips else _TakeLane)(below, spec, self._of_lane(below, spec.lane))

    def flaw(self, below: Below, lane: int, place: Place) -> str | None:
        most = 0 if self.skips else self._of_lane(below, lane)
        if any((place.shard, place.used, place.position)) or place.sample > most:
            return f"a cycle, zeros, and at most {most} samples that were taken"
        if not place.inner:
            return "a place in the stream below" if place.sample else None
        return flaw_below(below, lane, place.cycle, place.inner)

    def _of_lane(self, below: Below, lane: int) -> int:
        """Return the part of a lane."""
        lanes = min(below.lanes, below.shares)
        each, more = divmod(self.count, lanes)
        return each + (lane < more) if lane < lanes else 0


class _PartLane(PulledLane):
    def __init__(self, below: Below, spec: LaneSpec, count: int) -> None:
        super().__init__()
        self._spec, self._count, self._taken = spec, count, spec.place.sample
        inner = Place(*spec.place.inner) if spec.place.inner else Place(spec.place.cycle)
        self._below = below.open(spec.lane, inner, spec.path, spec.policy)

    def _source_place(self) -> Place:
        return Place(self._spec.place.cycle, 0, self._taken, 0, 0, *self._below.place)


class _TakeLane(_PartLane):
    def _pull(self, count: int) -> list[PendingSample]:
        pending = self._below.take(min(count, self._count - self._taken))
        self._taken += len(pending)
        return with_steps(pending, self._spec.steps)


class _SkipLane(_PartLane):
    def __init__(self, below: Below, spec: LaneSpec, count: int) -> None:
        super().__init__(below, spec, count)
        left = 0 if spec.place.inner else count
        while left and (skipped := self._below.take(min(left, 64))):
            left -= len(skipped)

    def _pull(self, count: int) -> list[PendingSample]:
        return with_steps(self._below.take(count), self._spec.steps)


@dataclass(frozen=True)
class Windows:
    """Samples shuffled in windows, which a resume reads again."""

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", plain_integer(self.size))
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise ValueError(f"shuffle: window is {self.size!r}, wanted an integer of at least 1.")

    def __str__(self) -> str:
        return f"shuffle({self.size})"

    def order(self) -> str:
        return f"{self}-1"

    def lane(self, below: Below, spec: LaneSpec) -> Lane:
        return WindowLane(below, self.size, spec)

    def flaw(self, below: Below, lane: int, place: Place) -> str | None:
        if place.shard or place.sample or place.used >= self.size:
            return f"a cycle, two zeros, and less than {self.size} samples used of a window"
        if not place.inner:
            return "a place in the stream below" if place.used or place.position else None
        return flaw_below(below, lane, place.cycle, place.inner)


class WindowLane(PulledLane):
    """A lane whose samples are read in windows, each delivered in another order."""

    def __init__(self, below: Below, size: int, spec: LaneSpec) -> None:
        super().__init__()
        place = spec.place
        self._spec, self._size = spec, size
        self._keys = ("shuffled", below.seed, place.cycle, spec.lane, *spec.path)
        inner = Place(*place.inner) if place.inner else Place(place.cycle)
        self._below = below.open(spec.lane, inner, spec.path, spec.policy)
        self._start, self._position = inner, place.position  # of the window
        self._window: Sequence[PendingSample] = ()  # in the order of delivery
        self._used = 0
        if place.used:
            self._read()
            if len(self._window) <= place.used:
                raise ValueError(
                    f"cannot resume: {place.used:,} samples of a window were used and more followed; now it has "
                    f"{len(self._window):,}. The data has changed: restore it, or start a new epoch with loader.seek(epoch=...)."
                )
            self._used = place.used

    def _source_place(self) -> Place:
        cycle = self._spec.place.cycle
        if self._used < len(self._window):
            return Place(cycle, 0, 0, self._used, self._position, *self._start)
        return Place(cycle, 0, 0, 0, self._position + len(self._window), *self._below.place)

    def _pull(self, count: int) -> list[PendingSample]:
        if self._used == len(self._window):
            self._position += len(self._window)
            self._read()
        pending = list(self._window[self._used : self._used + count])
        self._used += len(pending)
        return with_steps(pending, self._spec.steps)

    def _read(self) -> None:
        """Read the next window."""
        self._below.fill(1)  # else the place may be that of an end that nobody has met yet
        self._start, self._used = Place(*self._below.place), 0
        found = self._below.take(self._size)
        positions = np.arange(self._position, self._position + len(found), dtype=np.int64)
        self._window = self._ordered(found, positions)

    def _ordered(self, found: Sequence[PendingSample], positions: Int64Array) -> list[PendingSample]:
        """Return the samples of a window in the order of delivery. `positions` (N,) are their numbers in the lane."""
        order = np.argsort(hash_positions(positions, *self._keys), kind="stable").tolist()
        return [found[row] for row in order]


@dataclass(frozen=True)
class Batches:
    """Consecutive samples of a lane together as one."""

    size: int
    drop_last: bool
    collate_fn: Callable[[list[Any]], Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", plain_integer(self.size))
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise ValueError(f"batch: found {self.size!r}, wanted an integer of at least 1.")

    def __str__(self) -> str:
        return f"batch({self.size})"

    def order(self) -> str:
        return f"batch-1({self.size}{', full ones' if self.drop_last else ''})"

    def lane(self, below: Below, spec: LaneSpec) -> Lane:
        return _BatchLane(below, self, spec)

    def flaw(self, below: Below, lane: int, place: Place) -> str | None:
        if place.shard or place.sample or place.position:
            return "a cycle, two zeros, the bad samples that were left out of a batch, and a zero"
        if not place.inner:
            return "a place in the stream below" if place.used else None
        return flaw_below(below, lane, place.cycle, place.inner)


class _BatchLane(PulledLane):
    """Gives the bad samples that it meets while it reads a batch, each by itself, then the batch."""

    def __init__(self, below: Below, batches: Batches, spec: LaneSpec) -> None:
        super().__init__()
        self._batches, self._spec = batches, spec
        inner = Place(*spec.place.inner) if spec.place.inner else Place(spec.place.cycle)
        self._below = below.open(spec.lane, inner, spec.path, spec.policy)
        self._start: Place | None = None  # of the batch that was read, in the lane below
        self._samples: list[PendingSample] = []  # of that batch
        self._failed: list[PendingSample] = []  # read with it
        self._used = spec.place.used  # bad samples that were given already

    def _source_place(self) -> Place:
        inner = self._below.place if self._start is None else self._start
        return Place(self._spec.place.cycle, 0, 0, self._used, 0, *inner)

    def _pull(self, count: int) -> list[PendingSample]:
        if self._start is None:
            self._read()
        if self._used < len(self._failed):
            self._used += 1
            return [self._failed[self._used - 1]]
        samples, self._start, self._used = self._samples, None, 0
        if not samples or (self._batches.drop_last and len(samples) < self._batches.size):
            return []
        first = samples[0]
        steps = (Step(self._batches.collate_fn, is_collate=True), *self._spec.steps)
        # A new seed, so that the batch does not repeat the draws of its first sample.
        seed = mixed_word(first.seed)
        return [PendingSample([each.sample for each in samples], seed, first.shard, first.number, steps)]

    def _read(self) -> None:
        """Read the samples of the next batch, and apply their steps."""
        size, policy, start = self._batches.size, self._spec.policy, self._below.place
        samples: list[PendingSample] = []
        failed: list[PendingSample] = []
        while len(samples) < size and (pending := self._below.take(size - len(samples))):
            with seeds_of(pending) as seeds:
                for row, each in enumerate(pending):
                    done = each._replace(sample=apply_steps(each, seeds, row, policy), steps=())
                    (failed if type(done.sample) is Failed else samples).append(done)
        self._start, self._samples, self._failed = start, samples, failed
