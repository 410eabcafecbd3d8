"""`batch`: makes one sample out of consecutive samples of a lane."""

from dataclasses import dataclass

from loaderkit.datasets.base import Collate
from loaderkit.datasets.streams.lane import Lane, LaneSpec, Place
from loaderkit.datasets.streams.pulled import PulledLane
from loaderkit.datasets.streams.samples import Failed, PendingSample, Step, apply_steps, seeds_of
from loaderkit.datasets.streams.verb import Below, flaw_below
from loaderkit.seeding.keys import mixed_word
from loaderkit.system.checks import plain_integer


@dataclass(frozen=True)
class Batches:
    """The verb `batch`: makes one sample out of `size` consecutive samples of a lane."""

    size: int
    drop_last: bool
    collate_fn: Collate

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
    """Yields the bad samples found while reading a batch, one by one as `Failed`, and then the batch."""

    def __init__(self, below: Below, batches: Batches, spec: LaneSpec) -> None:
        super().__init__()
        self._batches, self._spec = batches, spec
        inner = Place(*spec.place.inner) if spec.place.inner else Place(spec.place.cycle)
        self._below = below.open(spec.lane, inner, spec.path, spec.policy)
        self._start: Place | None = None  # where the batch that was read begins in the lane below
        self._samples: list[PendingSample] = []  # of that batch
        self._failed: list[PendingSample] = []  # bad samples read with that batch
        self._used = spec.place.used  # bad samples that were yielded already

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
        """Read the samples of the next batch, and apply their maps."""
        size, policy, start = self._batches.size, self._spec.policy, self._below.place
        samples: list[PendingSample] = []
        failed: list[PendingSample] = []
        while len(samples) < size and (pending := self._below.take(size - len(samples))):
            with seeds_of(pending) as seeds:
                for row, each in enumerate(pending):
                    done = each._replace(sample=apply_steps(each, seeds, row, policy), steps=())
                    (failed if type(done.sample) is Failed else samples).append(done)
        self._start, self._samples, self._failed = start, samples, failed
