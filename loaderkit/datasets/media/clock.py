"""Find which sample a run of decoded audio frames begins with, if the time of one frame is not exact.

Samples are counted from the start of the stream.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil, floor, gcd
from typing import Protocol

# Consecutive frames: the time of each in samples since the stream's start (None if unknown), and its number of samples.
Run = Sequence[tuple[float | None, int]]


class Clock(Protocol):
    """A way to find the sample that a run begins with, from the times of its frames."""

    def begin_of(self, run: Run) -> int | None:
        """Return the number of the sample that a run of frames begins with; None if the times do not tell."""
        ...


class MostAgree:
    """The clock for Ogg and MPEG, where a few frames have wrong times: take the begin that most frames agree on.

    In Vorbis, for example, times are wrong where the length of blocks changes.
    """

    def begin_of(self, run: Run) -> int | None:
        [(found, votes)] = Counter(map(round, _begins(run))).most_common(1) or [(0, 0)]
        return found if votes > 1 else None


@dataclass(frozen=True, slots=True)
class Rounded:
    """The clock for formats that round times: Matroska, WebM, FLV and WMA round to milliseconds (48 samples at 48 kHz).

    Two facts narrow down the sample. The times of all frames of a run must fit. And each frame begins a multiple of
    some number of samples, such as 1,024, after the first frame's end.

    Attributes:
        tick: The unit of times, in samples.
        zero: The range (from, to) that has the exact time of the first sample, in samples.
        first: Number of samples in the stream's first frame.
        step: Number of samples; each later frame begins a multiple of it after the end of the first frame.
    """

    tick: float
    zero: tuple[float, float]
    first: int
    step: int

    @classmethod
    def of(cls, run: Run, tick: float) -> "Rounded":
        """Return the clock of a stream. `run` is its first frames, and `tick` the unit of times in samples.

        Raises:
            ValueError: If none of the frames has a time.
        """
        zero = _range(run, tick)
        if zero is None:
            raise ValueError("its first packets have no times")
        return cls(tick, zero, run[0][1], reduce(gcd, (samples for _, samples in run[1:]), 0))

    def begin_of(self, run: Run) -> int | None:
        found = _range(run, self.tick)
        if found is None:
            return None
        at, to = found[0] - self.zero[1], found[1] - self.zero[0]
        step = reduce(gcd, (samples for _, samples in run[:-1]), self.step)
        while step > to - at >= 0:
            begin = self.first + step * ceil((at - self.first) / step)
            if begin <= to:
                return begin
            if step % 2:
                break
            step //= 2  # later frames may be shorter than the first ones
        return None


def _begins(run: Run) -> Iterator[float]:
    """Yield, for each frame with a time, when the run begins by that time, in samples."""
    before = 0
    for time, samples in run:
        if time is not None:
            yield time - before
        before += samples


def _range(run: Run, tick: float) -> tuple[float, float] | None:
    """Return the earliest and latest time at which a run may begin, in samples; None if no frame has a time."""
    begins = list(_begins(run))
    return (floor(max(begins) - tick / 2), ceil(min(begins) + tick / 2)) if begins else None
