"""A lane without its bad samples: they are consumed, and the next ones come in their place."""

from collections import deque

from loaderkit.datasets.bad_samples import BadSample, BadSamples, BadSamplesError
from loaderkit.datasets.streams.filter import PulledLane
from loaderkit.datasets.streams.lane import Lane, Place
from loaderkit.datasets.streams.samples import Failed, PendingSample, done, seeds_of

_MOST = 1000  # bad ones in a row


class SkippingLane(PulledLane):
    """A lane of the samples that can be read and transformed.

    All steps are done when a sample is read: whether a batch has another sample can only be known by doing them.

    Args:
        lane: With all steps.
        policy: Says which errors are a sample's fault.

    Raises:
        BadSamplesError: From `fill` and `take`, where a thousand samples in a row are bad.
    """

    def __init__(self, lane: Lane, policy: BadSamples) -> None:
        super().__init__()
        self._lane, self._policy = lane, policy
        self._in_a_row = 0
        self._passed: list[BadSample] = []  # behind the last good one that was pulled
        self._before: deque[list[BadSample]] = deque()  # for each sample that is read ahead, those passed before it
        self._report: list[BadSample] = []  # of what was taken
        self._first: Exception | None = None

    def fill(self, count: int) -> bool:
        """Read until so many samples can be taken; say whether they can."""
        while len(self._ahead) < count:
            if not super().fill(len(self._ahead) + 1):
                return False
            self._before.append(self._passed)
            self._passed = []
        return True

    def take(self, count: int) -> list[PendingSample]:
        """Take so many samples, or as many as there are."""
        for _ in range(min(count, len(self._ahead))):
            self._report += self._before.popleft()
        taken = super().take(count)
        if not self._ahead:
            self._report += self._passed
            self._passed = []
        return taken

    def report(self, *, over: bool) -> tuple[list[BadSample], Exception | None]:
        """Return the bad samples that were passed since the last report, up to the lane's place, and the first error.

        Args:
            over: Whether nothing more is taken, so that those that are read ahead belong to it as well.
        """
        if over:
            self._report += [bad for passed in [*self._before, self._passed] for bad in passed]
            self._before.clear()
            self._passed = []
        found, first = self._report, self._first
        self._report = []
        return found, first

    def _stand(self) -> Place:
        return self._lane.place

    def _pull(self, count: int) -> list[PendingSample]:
        while taken := self._lane.take(count):
            kept = []
            with seeds_of(taken) as seeds:
                for row, each in enumerate(taken):
                    sample = done(each, seeds, row, self._policy)
                    if type(sample) is Failed:
                        self._pass_over(each, sample)
                    else:
                        self._in_a_row = 0
                        kept.append(each._replace(sample=sample, steps=()))
            if kept:
                return kept
        return []

    def _pass_over(self, taken: PendingSample, failed: Failed) -> None:
        self._passed.append(BadSample(0, None, taken.number, failed.error, shard=taken.shard))
        self._first = self._first or failed.cause
        self._in_a_row += 1
        if self._in_a_row >= _MOST:
            raise BadSamplesError(
                f"stream: {_MOST:,} samples in a row are bad, the last is sample {taken.number} of shard {taken.shard!r} "
                f"({failed.error}). Mend the data, or what reads or transforms it."
            ) from failed.cause
