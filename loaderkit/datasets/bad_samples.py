"""What a loader does with samples that cannot be read: the policy, the records, and the limits."""

import bisect
import logging
import pickle
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

import torch

from loaderkit.sampling.cursor import Cursor
from loaderkit.system.checks import check_choice, check_integer
from loaderkit.system.nested import pin
from loaderkit.system.retry import Retry

T = TypeVar("T")
Policy = Literal["raise", "skip", "replace"]
KEPT = 1000  # records, and batches with bad samples, that a loader remembers
JUDGED_FROM = 1000  # samples; a rate over fewer means little
_NAMED = 8  # bad samples in an error message
_logger = logging.getLogger("loaderkit")


@dataclass(frozen=True)
class BadSamples:
    """What a Loader does if reading or transforming a sample fails.

    The Loader first retries errors that may be transient, such as a dropped connection.
    KeyboardInterrupt, SystemExit, MemoryError, CUDA's out-of-memory error and errors of the
    collate function are always raised. The policies:

    - "raise": raise the error.
    - "skip": leave the sample out. A batch that would be empty gets one replacement, so that
      all ranks have equally many batches. In a stream, the lane's next sample takes its place.
    - "replace": put another sample of the order in its place, chosen by (seed, epoch,
      position). That other sample then comes twice in the epoch. If batches are made by length,
      it is not longer than the bad sample; if there is no such sample, the bad one is left out.
      Not for streams.

    A retry in a stream starts to read again at the failed sample. If that sample is left out,
    reading goes on after it, so the stream's reader must be able to skip. A stream's transform
    is not retried.

    A resume is exact if the same samples fail again. The limits count what each rank has
    read itself in the epoch. After a resume these counts continue

    - on one rank: exactly;
    - on several ranks with a stream: exactly for the same number of ranks. Otherwise each
      rank takes an equal part of the sum. (For `stop="each"` see `merge_states`.)
    - on several ranks with indexed data: from zero, as no rank knows the others' counts.
      A count by a single rank continues on each rank.

    Args:
        policy: "raise", "skip" or "replace".
        max_count: Bad samples that each rank allows in an epoch; None for no limit.
        max_rate: Largest share of bad samples among those read. The first 1,000 samples,
            or the whole dataset if it is smaller, count as read from the start.
        retry: How to retry transient errors.

    Raises:
        ValueError: If a value is out of range.

    Examples:
        >>> def parse(text):
        ...     return int(text)
        >>> data = lk.RecordDataset(["1", "oops", "3"], transform=parse)
        >>> loader = lk.Loader(data, batch_size=3, bad_samples=lk.BadSamples("skip", max_rate=0.5))
        >>> next(iter(loader))
        tensor([1, 3])
        >>> loader.bad_samples[0].error
        "ValueError: invalid literal for int() with base 10: 'oops'"
    """

    policy: Policy = "raise"
    max_count: int | None = field(default=None, kw_only=True)
    max_rate: float = field(default=0.05, kw_only=True)
    retry: Retry = field(default=Retry(attempts=3), kw_only=True)

    def __post_init__(self) -> None:
        check_choice("BadSamples", "policy", self.policy, get_args(Policy))
        if self.max_count is not None:
            check_integer("BadSamples", "max_count", self.max_count, 0, ", or None")
        if not 0 <= self.max_rate <= 1:
            raise ValueError(f"BadSamples: max_rate is {self.max_rate!r}, wanted a number from 0 to 1.")

    def blames(self, error: Exception) -> bool:
        """Return whether a sample that raised this error is skipped or replaced; if not, the error is raised."""
        return self.policy != "raise" and not isinstance(error, _NO_SAMPLES_FAULT)

    def again(self, error: Exception, read: Callable[[], T], what: str) -> T:
        """Retry `read`, which failed with `error`, while the error may be transient, and return its result.

        Raise the last error if no retry succeeds. `what` names the sample in messages.
        """
        failed = [error]

        def attempt() -> T:
            if failed:
                raise failed.pop()
            return read()

        result = self.retry.call(attempt, what=what)
        drop_traceback(error)
        return result


# A library that is missing fails for each sample alike.
_NO_SAMPLES_FAULT = (MemoryError, torch.OutOfMemoryError, ImportError)
RAISE = BadSamples()


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be read.

    Args:
        epoch: The epoch.
        position: Position in the epoch's order; None in a stream.
        index: Index in the dataset, or in the shard.
        error: Type and message of the error.
        replacement: Index of the sample that took its place; None if it was skipped.
        shard: The stream's shard; None for indexed data.

    Examples:
        >>> lk.BadSample(epoch=0, position=5, index=17, error="KeyError: 'x'").name
        'sample 17'
    """

    epoch: int
    position: int | None
    index: int
    error: str
    replacement: int | None = None
    shard: str | None = None

    @property
    def name(self) -> str:
        """The sample's index, and its shard if it has one, as words for a message."""
        return f"sample {self.index} of shard {self.shard!r}" if self.shard is not None else f"sample {self.index}"


class BadSamplesError(RuntimeError):
    """More bad samples than the policy allows, or no readable replacement.

    Examples:
        >>> data = lk.RecordDataset("1a", transform=int)
        >>> try:
        ...     list(lk.Loader(data, bad_samples=lk.BadSamples("skip")))
        ... except lk.BadSamplesError as error:
        ...     print(str(error)[:56])
        loader: 1 bad samples in epoch 0, wanted at most max_rat
    """


@dataclass(frozen=True, slots=True)
class Reported:
    """A batch and the bad samples found while it was made.

    A worker sends it to the Loader, which counts the bad samples.
    """

    batch: object
    bad: Sequence[BadSample]
    first: Exception  # the first bad sample's error

    def pin_memory(self) -> "Reported":
        return Reported(pin(self.batch), self.bad, self.first)


def portable(error: Exception) -> Exception:
    """Return a copy of an error that can be pickled, with the traceback as a note.

    If the error does not pickle, the copy is a RuntimeError with its type and message.
    """
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
        if not isinstance(copy, Exception):
            raise TypeError
    except Exception:
        copy = RuntimeError(describe(error))
    copy.add_note("".join(traceback.format_tb(error.__traceback__)))
    return copy


def describe(error: Exception) -> str:
    """Return an error's type and message in one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split("\n")[0].split())


def drop_traceback(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that is not raised, and of the errors that it was raised from.

    The frames of a traceback keep alive the error and all local variables of the callers, such as workers.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


class BadSampleCount:
    """Counts the bad samples of an epoch, and remembers the count after each of the latest batches that had any."""

    def __init__(self, policy: BadSamples) -> None:
        self.policy = policy
        self.found: deque[BadSample] = deque(maxlen=KEPT)
        self.start(0)

    def start(self, epoch: int, known: int = 0, *, judged: int = 0, since: int = 0) -> None:
        """Start counting in an epoch that has `known` bad samples so far.

        These were found among `judged` samples. The epoch has consumed `since` samples so far, over all ranks.
        """
        self._epoch, self._known, self._judged, self._since = epoch, known, judged, since
        self._places: list[int] = []  # number of batches after each batch with bad samples
        self._counts: list[int] = []  # the count after that batch
        self._first: tuple[BadSample, ...] = ()
        self._cause: Exception | None = None

    def saved(self, cursor: Cursor, *, alone: bool) -> tuple[int, int]:
        """Return what a loader's state holds: the count of bad samples, and the number of samples judged for it.

        `alone`: whether this is the only rank. Otherwise both numbers are those given to `start`, which all ranks
        share.
        """
        if self.policy.policy == "raise":
            return 0, cursor.samples
        judged = int(self.judged(cursor.epoch, cursor.samples, 1 if alone else 0))
        return self.at(cursor.epoch, cursor.batches, own=alone), judged

    def go_back(self, epoch: int, batches: int) -> None:
        """Forget what was counted after the first `batches` batches of this rank.

        For another epoch, forget everything.
        """
        if epoch != self._epoch:
            self.start(epoch)
            return
        left = bisect.bisect_right(self._places, batches)
        del self._places[left:], self._counts[left:]

    def judged(self, epoch: int, samples: int, ranks: int) -> float:
        """Return the number of samples among which the bad samples were counted.

        `samples` were consumed in the epoch, over all ranks. Those since `start` are divided by `ranks`, as each rank
        counts only its own; `ranks=0` leaves them out.
        """
        if epoch != self._epoch:
            return samples
        return self._judged + ((samples - self._since) / ranks if ranks else 0)

    def at(self, epoch: int, batches: int, *, own: bool = True) -> int:
        """Return the count after `batches` batches of this rank.

        `own`: whether to include what this rank counted since `start`.
        """
        if epoch != self._epoch:
            return 0
        known = bisect.bisect_right(self._places, batches) if own else 0
        return self._counts[known - 1] if known else self._known

    def add(self, report: Reported, *, epoch: int, batches: int, seen: float) -> None:
        """Count and log the bad samples of one batch, after which this rank has yielded `batches` batches.

        The rate of bad samples is their count divided by `seen` samples.

        Raises:
            BadSamplesError: If there are more bad samples than the policy allows. Those of this batch are then not
                counted.
        """
        if epoch != self._epoch:
            self.start(epoch)
        for bad in report.bad:
            outcome = "skipped" if bad.replacement is None else f"replaced by {bad.replacement}"
            place = "" if bad.position is None else f", position {bad.position}"
            _logger.warning("%s (epoch %d%s) %s: %s", bad.name, bad.epoch, place, outcome, bad.error)
        self.found.extend(report.bad)
        self._first = (*self._first, *report.bad)[:_NAMED]
        self._cause = self._cause or report.first
        count = (self._counts[-1] if self._counts else self._known) + len(report.bad)
        self._check(count, seen)
        self._places.append(batches)
        self._counts.append(count)
        if len(self._places) > 2 * KEPT:
            del self._places[:KEPT], self._counts[:KEPT]

    def _check(self, count: int, seen: float) -> None:
        policy = self.policy
        if policy.max_count is not None and count > policy.max_count:
            limit = f"wanted at most max_count={policy.max_count}"
        elif count > policy.max_rate * max(seen, count):  # a rank may read samples again at the end of an epoch
            limit = f"wanted at most max_rate={policy.max_rate:g} of {seen:,.0f} samples"
        else:
            return
        first = "; ".join(
            f"{bad.name}{'' if bad.position is None else f' at position {bad.position}'}: {bad.error}"
            for bad in self._first
        )
        raise BadSamplesError(
            f"loader: {count:,} bad samples in epoch {self._epoch}, {limit}. The first since the start: {first}. "
            "Repair the data, or allow more: lk.BadSamples(max_count=..., max_rate=...)."
        ) from self._cause
