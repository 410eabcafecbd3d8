"""Ranges of an epoch's order that a run leaves out.

A cursor keeps its meaning: its `samples` count positions of the whole order, those left out too. So a state does not depend
on the ranges that still lie ahead. Samples that stay keep their positions, and thus their random numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from loaderkit.system.arrays import Int64Array
from loaderkit.system.state import COUNT, EPOCH, Rule

Stretch = tuple[int, int, int]  # an epoch, and positions of its order: the first one, and the end


def _are_stretches(value: object) -> bool:
    if not isinstance(value, list | tuple):
        return False
    for each in value:
        if not isinstance(each, list | tuple) or len(each) != 3 or not EPOCH.holds(each[0]):
            return False
        if not COUNT.holds(each[1]) or not COUNT.holds(each[2]) or each[1] >= each[2]:
            return False
    return [list(each) for each in value] == [list(each) for each in Skips.of(value).stretches]


STRETCHES = Rule("a list of [epoch, start, stop] in ascending order, not touching each other", _are_stretches)


@dataclass(frozen=True, slots=True)
class Skips:
    """What a run leaves out: stretches of the order in ascending order that do not touch each other."""

    stretches: tuple[Stretch, ...] = ()

    @classmethod
    def of(cls, stretches: Iterable[Sequence[int]]) -> Self:
        """Sort stretches, and join those that touch; empty ones vanish."""
        joined: list[Stretch] = []
        for epoch, start, stop in sorted(map(tuple, stretches)):
            if start >= stop:
                continue
            if joined and joined[-1][0] == epoch and start <= joined[-1][2]:
                joined[-1] = epoch, joined[-1][1], max(stop, joined[-1][2])
            else:
                joined.append((epoch, start, stop))
        return cls(tuple(joined))

    def __bool__(self) -> bool:
        return bool(self.stretches)

    def __or__(self, other: "Skips") -> "Skips":
        return Skips.of(self.stretches + other.stretches)

    def ahead_of(self, epoch: int, samples: int) -> "Skips":
        """Return the part that lies ahead of a position: samples that were delivered can't be left out any more."""
        return Skips.of(
            (number, max(start, samples) if number == epoch else start, stop)
            for number, start, stop in self.stretches
            if number >= epoch
        )

    def since(self, epoch: int) -> tuple[Stretch, ...]:
        """Return the stretches of an epoch and of later ones."""
        return tuple(each for each in self.stretches if each[0] >= epoch)

    def gaps(self, epoch: int) -> "Gaps | None":
        """Return the ranges of samples that are skipped in an epoch; None if none is."""
        found = [each[1:] for each in self.stretches if each[0] == epoch]
        return Gaps(np.array(found, dtype=np.int64)) if found else None


class Gaps:
    """The gaps in one epoch. It converts positions to numbers of the samples that stay, and back.

    Args:
        found: Start and stop of each gap, ascending and apart (G, 2).
    """

    def __init__(self, found: Int64Array) -> None:
        starts, stops = found.T
        self._starts = starts
        self._stops = np.concatenate([[0], stops])
        self._lacking = np.concatenate([[0], (stops - starts).cumsum()])  # samples in the first 0 to G gaps (G + 1,)
        self._kept = starts - self._lacking[:-1]  # samples that stay before each gap

    def kept_before_each(self, positions: Int64Array) -> Int64Array:
        """Return how many samples stay before each position (N,)."""
        before = np.searchsorted(self._starts, positions, side="left")
        found: Int64Array = positions - self._lacking[before] + np.maximum(0, self._stops[before] - positions)
        return found

    def positions(self, kept: Int64Array) -> Int64Array:
        """Return the positions of samples that stay (N,), numbered without the gaps."""
        found: Int64Array = kept + self._lacking[np.searchsorted(self._kept, kept, side="right")]
        return found

    def end(self, kept: int) -> int:
        """Return the position after the first `kept` samples that stay, before any gap that follows."""
        return kept + int(self._lacking[np.searchsorted(self._kept, kept, side="left")])

    def kept_before(self, position: int) -> int:
        """Return how many samples stay before one position."""
        return int(self.kept_before_each(np.array([position], dtype=np.int64))[0])
