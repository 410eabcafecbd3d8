"""Which sample a run of decoded frames begins with, where the time of one frame does not tell it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil, floor, gcd
from typing import Protocol

# Frames one after another: the time of each in samples since the stream's start, if it is known, and its number of samples.
Run = Sequence[tuple[float | None, int]]


class Clock(Protocol):
    """Tells which sample a run begins with."""

    def begin_of(self, run: Run) -> int | None:
        """Return the sample with which a run of frames begins; None if its times do not tell."""
        ...


class MostAgree:
    """The clock of Ogg and MPEG: a few frames have wrong times, such as those of Vorbis where its blocks change their length."""

    def begin_of(self, run: Run) -> int | None:
        [(found, votes)] = Counter(map(round, _begins(run))).most_common(1) or [(0, 0)]
        return found if votes > 1 else None


@dataclass(frozen=True, slots=True)
class Rounded:
    """A clock that rounds times: Matroska, WebM, FLV and WMA have milliseconds, which are 48 samples.

    Two things tell more than a time alone. Each frame of a run has a time of its own, and all of them must fit. And frames begin at
    multiples of some number of samples, such as 1,024.

    Attributes:
        tick: Samples between two times.
        zero: The range (from, to) of the exact time of the first sample, in samples.
        first: Samples of the first frame.
        step: Each later frame begins a multiple of this after the end of the first one.
    """

    tick: float
    zero: tuple[float, float]
    first: int
    step: int

    @classmethod
    def of(cls, run: Run, tick: float) -> "Rounded":
        """Return the clock of a stream with these first frames.

        Raises:
            ValueError: If they have no times.
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
            step //= 2  # the first frames had one length, and later ones have another
        return None


def _begins(run: Run) -> Iterator[float]:
    """Return when a run begins by each of its times."""
    before = 0
    for time, samples in run:
        if time is not None:
            yield time - before
        before += samples


def _range(run: Run, tick: float) -> tuple[float, float] | None:
    """Return the first and the last time at which a run may begin; None if it has no times."""
    begins = list(_begins(run))
    return (floor(max(begins) - tick / 2), ceil(min(begins) + tick / 2)) if begins else None
