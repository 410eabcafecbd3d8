"""`shuffle`: samples shuffled in windows, which a resume reads again."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loaderkit.datasets.streams.lane import Lane, LaneSpec, Place
from loaderkit.datasets.streams.pulled import PulledLane
from loaderkit.datasets.streams.samples import PendingSample, with_steps
from loaderkit.datasets.streams.verb import Below, flaw_below
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import plain_integer


@dataclass(frozen=True)
class Windows:
    """The verb `shuffle`: shuffles samples in windows of `size`. A resume reads its window again."""

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
    """A lane that reads samples in windows, and delivers each window in a random order."""

    def __init__(self, below: Below, size: int, spec: LaneSpec) -> None:
        super().__init__()
        place = spec.place
        self._spec, self._size = spec, size
        self._keys = ("shuffled", below.seed, place.cycle, spec.lane, *spec.path)
        inner = Place(*place.inner) if place.inner else Place(place.cycle)
        self._below = below.open(spec.lane, inner, spec.path, spec.policy)
        self._start, self._position = inner, place.position  # where the window begins
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
        self._below.fill(1)  # moves the place past the end of a shard
        self._start, self._used = Place(*self._below.place), 0
        found = self._below.take(self._size)
        positions = np.arange(self._position, self._position + len(found), dtype=np.int64)
        self._window = self._ordered(found, positions)

    def _ordered(self, found: Sequence[PendingSample], positions: Int64Array) -> list[PendingSample]:
        """Return the samples of a window in the order of delivery. `positions` (N,) are their numbers in the lane."""
        order = np.argsort(hash_positions(positions, *self._keys), kind="stable").tolist()
        return [found[row] for row in order]
