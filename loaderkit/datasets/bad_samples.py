"""What is done with samples that can't be read: the policy, the record of them, and how many are too many."""

import bisect
import logging
import pickle
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import torch

from loaderkit.sampling.cursor import Cursor
from loaderkit.system.nested import pin
from loaderkit.system.retry import Retry

T = TypeVar("T")
Policy = Literal["raise", "skip", "replace"]
KEPT = 1000  # records, and batches with bad samples, that a loader remembers
JUDGED_FROM = 1000  # samples: a rate over fewer says little
_NAMED = 8
_logger = logging.getLogger("loaderkit")


@dataclass(frozen=True)
class BadSamples:
    """What a loader does where reading or transforming a sample fails.

    An error that may pass by itself, such as a dropped connection, is first tried
    again. KeyboardInterrupt, SystemExit, MemoryError and CUDA's out-of-memory are
    never a sample's fault, and neither are errors of the collate function.

    - raise: the error is raised.
    - skip: the batch goes without the sample. A batch of which nothing is left gets
      one replacement, so that all ranks have as many batches. In a stream the lane's next
      sample comes in its place.
    - replace: another sample of the order comes in its place, chosen by (seed,
      epoch, position), and read under that position's seed. It comes once more, then.
      Where batches are made by lengths, it is not longer than the bad one; where nothing
      is as short, the sample is left out. Not for streams, which have nothing to choose from.

    A stream reads again from the sample that failed, and behind it where the sample is left
    out, so that its reader has to skip. What transforms it is not tried again.

    Which samples are left out or repeated is thus a function of the samples
    that fail: a resume is exact where they fail again. Each rank judges the samples of the epoch
    that it has read itself. A resume goes on with these counts

    - on one rank: exactly;
    - on several ranks that read a stream: exactly, with as many ranks as before; with another
      number each takes an equal part of the sum. (With `stop="each"` see `merge_states`.)
    - on several ranks that read data with an index: not at all. No rank knows what others
      found, so each judges what it has read since the resume. What was counted before by a
      single rank counts for each.

    Args:
        policy: See above.
        max_count: How many an epoch may have on each rank; None is any number.
        max_rate: How large a part they may be of the samples that are judged; the first
            1,000 (or the whole dataset, if smaller) count as read.
        retry: How an error that may pass is tried again.

    Raises:
        ValueError: If a value is out of range.
    """

    policy: Policy = "raise"
    max_count: int | None = field(default=None, kw_only=True)
    max_rate: float = field(default=0.05, kw_only=True)
    retry: Retry = field(default=Retry(attempts=3), kw_only=True)

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ValueError(f"BadSamples: policy is {self.policy!r}, wanted 'raise', 'skip' or 'replace'.")
        if self.max_count is not None and (
            not isinstance(self.max_count, int) or isinstance(self.max_count, bool) or self.max_count < 0
        ):
            raise ValueError(f"BadSamples: max_count is {self.max_count!r}, wanted an integer of at least 0, or None.")
        if not 0 <= self.max_rate <= 1:
            raise ValueError(f"BadSamples: max_rate is {self.max_rate!r}, wanted a number from 0 to 1.")

    def blames(self, error: Exception) -> bool:
        """Say whether the policy takes an error for the sample's fault, and goes on without it."""
        return self.policy != "raise" and not isinstance(error, MemoryError | torch.OutOfMemoryError)

    def again(self, error: Exception, read: Callable[[], T], what: str) -> T:
        """Read again what failed, as long as the error may pass.

        Args:
            error: With which it failed.
            read: Reads it.
            what: Its name, for the log.

        Raises:
            Exception: The last error, if none of them passed.
        """
        failed = [error]

        def attempt() -> T:
            if failed:
                raise failed.pop()
            return read()

        result = self.retry.call(attempt, what=what)
        drop_traceback(error)
        return result


RAISE = BadSamples()


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be read."""

    epoch: int
    position: int | None  # in the epoch's order; None in a stream
    index: int  # in the dataset, or in the shard
    error: str  # its type and message
    replacement: int | None = None  # the index that came in its place
    shard: str | None = None  # of a stream

    @property
    def name(self) -> str:
        """Which one it is, in words."""
        return f"sample {self.index} of shard {self.shard!r}" if self.shard is not None else f"sample {self.index}"


class BadSamplesError(RuntimeError):
    """More samples were bad than the policy allows, or no replacement could be read."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A batch with the bad samples that belonged in it, on its way from where it was made to where it is counted."""

    batch: Any
    bad: Sequence[BadSample]
    first: Exception  # of those errors

    def pin_memory(self) -> "Reported":
        return Reported(pin(self.batch), self.bad, self.first)


def portable(error: Exception) -> Exception:
    """Return an error that goes through pickle, with its traceback as a note."""
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
    """Forget where an error came from that is not raised.

    Its frames hold the error itself, and all that the callers have, such as workers, until the garbage is collected.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


class BadSampleCount:
    """Counts an epoch's bad samples where batches are yielded, and remembers the count at the last of those batches.

    Args:
        policy: Says how many are allowed.
    """

    def __init__(self, policy: BadSamples) -> None:
        self.policy = policy
        self.found: deque[BadSample] = deque(maxlen=KEPT)
        self.start(0)

    def start(self, epoch: int, known: int = 0, *, judged: int = 0, since: int = 0) -> None:
        """Begin to count.

        Args:
            epoch: In which one.
            known: Its bad samples that were found before.
            judged: Samples of the epoch among which these were found, over all ranks.
            since: Samples of the epoch after which it is counted here, over all ranks.
        """
        self._epoch, self._known, self._judged, self._since = epoch, known, judged, since
        self._places: list[int] = []  # behind batches with bad samples, in batches of the epoch
        self._counts: list[int] = []  # there
        self._first: tuple[BadSample, ...] = ()
        self._cause: Exception | None = None

    def state(self, cursor: Cursor, *, alone: bool) -> dict[str, int]:
        """Return what a state has to say of the count at a place, the same on all ranks: none knows what others counted.

        Args:
            cursor: The place.
            alone: Whether there is but one rank.
        """
        if self.policy.policy == "raise":
            return {}
        known = self.at(cursor.epoch, cursor.batches, own=alone)
        judged = int(self.judged(cursor.epoch, cursor.samples, 1 if alone else 0))
        return ({"bad": known} if known else {}) | ({} if judged == cursor.samples else {"judged": judged})

    def load(self, state: Mapping[str, Any], cursor: Cursor) -> None:
        """Begin to count at the place of a state."""
        judged = state.get("judged", cursor.samples)
        self.start(cursor.epoch, state.get("bad", 0), judged=judged, since=cursor.samples)

    def go_back(self, epoch: int, batches: int) -> None:
        """Forget what was counted behind so many batches of this rank; in another epoch, all."""
        if epoch != self._epoch:
            self.start(epoch)
            return
        left = bisect.bisect_right(self._places, batches)
        del self._places[left:], self._counts[left:]

    def judged(self, epoch: int, samples: int, ranks: int) -> float:
        """Return by how many samples of the epoch the count behind so many of all ranks' is judged.

        Args:
            epoch: Which one.
            samples: Consumed in it.
            ranks: That share what was consumed here; 0 to leave that out.
        """
        if epoch != self._epoch:
            return samples
        return self._judged + ((samples - self._since) / ranks if ranks else 0)

    def at(self, epoch: int, batches: int, *, own: bool = True) -> int:
        """Return the count behind so many batches of an epoch.

        Args:
            epoch: Which one.
            batches: Of this rank.
            own: Whether to add what was counted since the start, of which other ranks don't know.
        """
        if epoch != self._epoch:
            return 0
        known = bisect.bisect_right(self._places, batches) if own else 0
        return self._counts[known - 1] if known else self._known

    def add(self, report: Reported, *, epoch: int, batches: int, seen: float) -> None:
        """Count a batch's bad samples, and log them.

        Args:
            report: Of the batch.
            epoch: The batch's.
            batches: Of this rank, this one included.
            seen: Samples of the epoch by which the rate is judged.

        Raises:
            BadSamplesError: If they are more than the policy allows; they are not counted then.
        """
        if epoch != self._epoch:
            self.start(epoch)
        for bad in report.bad:
            went = "skipped" if bad.replacement is None else f"replaced by {bad.replacement}"
            place = "" if bad.position is None else f", position {bad.position}"
            _logger.warning("%s (epoch %d%s) %s: %s", bad.name, bad.epoch, place, went, bad.error)
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
        elif count > policy.max_rate * seen:
            limit = f"wanted at most max_rate={policy.max_rate:g} of {seen:,.0f} samples"
        else:
            return
        first = "; ".join(
            f"{bad.name}{'' if bad.position is None else f' at position {bad.position}'}: {bad.error}"
            for bad in self._first
        )
        raise BadSamplesError(
            f"loader: {count:,} bad samples in epoch {self._epoch}, {limit}. The first since the start: {first}. "
            "Mend the data, or allow more: lk.BadSamples(max_count=..., max_rate=...)."
        ) from self._cause
