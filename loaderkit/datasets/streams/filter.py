"""Lanes that are read ahead of what is taken, sample by sample; and one of them that drops samples."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from loaderkit.datasets.bad_samples import RAISE, BadSamples
from loaderkit.datasets.streams.lane import Lane, Place
from loaderkit.datasets.streams.samples import DROPPED, PendingSample, Step, done, seeds_of
from loaderkit.seeding.keys import mixed_word


class PulledLane(ABC):
    """A lane that gives samples one after another, and knows where it stands between them."""

    def __init__(self) -> None:
        self._ahead: deque[tuple[PendingSample, Place]] = deque()  # each with the place before it

    @property
    def place(self) -> Place:
        """Where the next sample to be taken stands."""
        return self._ahead[0][1] if self._ahead else self._stand()

    def fill(self, count: int) -> bool:
        """Read until so many samples can be taken; say whether they can."""
        while len(self._ahead) < count:
            place = self._stand()
            pulled = self._pull(1)
            if not pulled:
                return False
            self._ahead.append((pulled[0], place))
        return True

    def take(self, count: int) -> list[PendingSample]:
        """Take so many samples, or as many as there are."""
        taken = [self._ahead.popleft()[0] for _ in range(min(count, len(self._ahead)))]
        while len(taken) < count and (pulled := self._pull(count - len(taken))):
            taken += pulled
        return taken

    @abstractmethod
    def _stand(self) -> Place:
        """Return where the next sample to be pulled stands."""

    @abstractmethod
    def _pull(self, count: int) -> list[PendingSample]:
        """Return at least one and at most so many samples; none at the end."""


class FilteredLane(PulledLane):
    """A lane without the samples that its filters drop.

    Args:
        lane: With the filters among its steps.
        steps: To be done to those that are left.
        policy: What is done where a step fails.
    """

    def __init__(self, lane: Lane, steps: Sequence[Step], policy: BadSamples = RAISE) -> None:
        super().__init__()
        self._lane, self._steps, self._policy = lane, steps, policy

    def _stand(self) -> Place:
        return self._lane.place

    def _pull(self, count: int) -> list[PendingSample]:
        while taken := self._lane.take(count):
            with seeds_of(taken) as seeds:
                samples = [done(each, seeds, row, self._policy) for row, each in enumerate(taken)]
            kept = [
                # What is drawn from here on is not what the steps before drew.
                each._replace(sample=sample, word=mixed_word(each.word), steps=self._steps)
                for each, sample in zip(taken, samples, strict=True)
                if sample is not DROPPED
            ]
            if kept:
                return kept
        return []
