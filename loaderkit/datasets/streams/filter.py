"""`filter`: a lane without the samples that its filters drop."""

from collections.abc import Sequence

from loaderkit.datasets.bad_samples import BadSamples
from loaderkit.datasets.streams.lane import Lane, Place
from loaderkit.datasets.streams.pulled import PulledLane
from loaderkit.datasets.streams.samples import DROPPED, PendingSample, Step, apply_steps, seeds_of
from loaderkit.seeding.keys import mixed_word


class FilteredLane(PulledLane):
    """A lane without the samples that its filters drop.

    The filters are among the steps of `lane`. `steps` are those after the last filter.
    """

    def __init__(self, lane: Lane, steps: Sequence[Step], policy: BadSamples) -> None:
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
