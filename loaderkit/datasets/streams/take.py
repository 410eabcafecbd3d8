"""`take` and `skip`: the first samples of a stream, or all others."""

from dataclasses import dataclass

from loaderkit.datasets.streams.lane import Lane, LaneSpec, Place
from loaderkit.datasets.streams.pulled import PulledLane
from loaderkit.datasets.streams.samples import PendingSample, with_steps
from loaderkit.datasets.streams.verb import Below, flaw_below
from loaderkit.system.checks import plain_integer


@dataclass(frozen=True)
class Part:
    """The first `count` samples over all lanes, or all others. Each lane that has a shard gives an equal part."""

    count: int
    skips: bool  # whether to skip the first samples instead of taking them

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
        """Return how many of the `count` samples are a lane's part."""
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
