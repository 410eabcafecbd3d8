"""A lane that leaves out bad samples, and reports them."""

from collections import deque

from loaderkit.datasets.bad_samples import BadSample, BadSamples, BadSamplesError
from loaderkit.datasets.streams.lane import Lane, Place
from loaderkit.datasets.streams.pulled import PulledLane
from loaderkit.datasets.streams.samples import Failed, PendingSample, apply_steps, seeds_of

_MOST = 1000  # bad samples in a row


class SkippingLane(PulledLane):
    """A lane of the samples that can be read and transformed.

    It applies all steps when it reads a sample: only then is it known whether another good sample follows.

    Raises:
        BadSamplesError: From `fill` and `take`, if a thousand samples in a row are bad.
    """

    def __init__(self, lane: Lane, policy: BadSamples) -> None:
        super().__init__()
        self._lane, self._policy = lane, policy
        self._in_a_row = 0
        self._passed: list[BadSample] = []  # bad samples after the last good one that was pulled
        self._before: deque[list[BadSample]] = deque()  # for each sample read ahead, the bad ones before it
        self._report: list[BadSample] = []  # bad samples to report: those before the samples that were taken
        self._first: Exception | None = None

    def fill(self, count: int) -> bool:
        while len(self._ahead) < count:
            if not super().fill(len(self._ahead) + 1):
                return False
            self._before.append(self._passed)
            self._passed = []
        return True

    def take(self, count: int) -> list[PendingSample]:
        for _ in range(min(count, len(self._ahead))):
            self._report += self._before.popleft()
        pending = super().take(count)
        if not self._ahead:
            self._report += self._passed
            self._passed = []
        return pending

    def report(self, *, over: bool) -> tuple[list[BadSample], Exception | None]:
        """Return the bad samples since the last report, and the first error of all.

        If `over`, nothing more is taken from the lane, so bad samples read ahead are reported too.
        """
        if over:
            self._report += [bad for passed in [*self._before, self._passed] for bad in passed]
            self._before.clear()
            self._passed = []
        found, first = self._report, self._first
        self._report = []
        return found, first

    def _source_place(self) -> Place:
        return self._lane.place

    def _pull(self, count: int) -> list[PendingSample]:
        while pending := self._lane.take(count):
            kept = []
            with seeds_of(pending) as seeds:
                for row, each in enumerate(pending):
                    sample = apply_steps(each, seeds, row, self._policy)
                    if type(sample) is Failed:
                        self._pass_over(each, sample)
                    else:
                        self._in_a_row = 0
                        kept.append(each._replace(sample=sample, steps=()))
            if kept:
                return kept
        return []

    def _pass_over(self, pending: PendingSample, failed: Failed) -> None:
        self._passed.append(BadSample(0, None, pending.number, failed.error, shard=pending.shard))
        self._first = self._first or failed.cause
        self._in_a_row += 1
        if self._in_a_row >= _MOST:
            raise BadSamplesError(
                f"stream: {_MOST:,} samples in a row are bad, the last is sample {pending.number} of shard "
                f"{pending.shard!r} ({failed.error}). Mend the data, or the function that reads or transforms it."
            ) from failed.cause
