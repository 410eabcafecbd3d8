"""Lanes that pull samples from others, and the lane that drops samples."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from loaderkit.datasets.bad_samples import RAISE, BadSamples
from loaderkit.datasets.streams.lane import Lane, Place
from loaderkit.datasets.streams.samples import DROPPED, PendingSample, Step, apply_steps, seeds_of
from loaderkit.seeding.keys import mixed_word


class PulledLane(ABC):
    """A lane that pulls samples one after another, and keeps those that were filled but not taken."""

    def __init__(self) -> None:
        self._ahead: deque[tuple[PendingSample, Place]] = deque()  # each with the place before it

    @property
    def place(self) -> Place:
        """The place of the next sample that `take` returns."""
        return self._ahead[0][1] if self._ahead else self._source_place()

    def fill(self, count: int) -> bool:
        """Read until this many samples can be taken; say whether they can."""
        while len(self._ahead) < count:
            place = self._source_place()
            pulled = self._pull(1)
            if not pulled:
                return False
            self._ahead.append((pulled[0], place))
        return True

    def take(self, count: int) -> list[PendingSample]:
        """Return up to this many samples."""
        pending = [self._ahead.popleft()[0] for _ in range(min(count, len(self._ahead)))]
        while len(pending) < count and (pulled := self._pull(count - len(pending))):
            pending += pulled
        return pending

    @abstractmethod
    def _source_place(self) -> Place:
        """Return the place of the next sample that `_pull` returns."""

    @abstractmethod
    def _pull(self, count: int) -> list[PendingSample]:
        """Return one to `count` samples; none at the end."""


class FilteredLane(PulledLane):
    """A lane without the samples that its filters drop.

    Args:
        lane: The lane, whose samples have the filters among their steps.
        steps: The steps after the last filter.
        policy: What happens if a step fails.
    """

    def __init__(self, lane: Lane, steps: Sequence[Step], policy: BadSamples = RAISE) -> None:
        super().__init__()
        self._lane, self._steps, self._policy = lane, steps, policy

    def _source_place(self) -> Place:
        return self._lane.place

    def _pull(self, count: int) -> list[PendingSample]:
        while pending := self._lane.take(count):
            with seeds_of(pending) as seeds:
                samples = [apply_steps(each, seeds, row, self._policy) for row, each in enumerate(pending)]
            kept = [
                # A new seed, so that later steps do not repeat the draws of earlier ones.
                each._replace(sample=sample, seed=mixed_word(each.seed), steps=self._steps)
                for each, sample in zip(pending, samples, strict=True)
                if sample is not DROPPED
            ]
            if kept:
                return kept
        return []
