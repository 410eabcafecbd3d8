"""Segments: the stretches of an order that a plan by length arranges together.

A segment is a window of the order. If a run resumes inside a window with another geometry (ranks, batch size), the rest
of that window is one more segment.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from loaderkit.sampling.by_length.turns import take_turns
from loaderkit.sampling.cursor import Cursor, bad_cursor
from loaderkit.system.arrays import Float64Array, Int64Array
from loaderkit.system.state import Rule, StateError, integers

Geometry = tuple[int, ...]  # the settings that shape an arrangement: ranks, batch size or budget, then the plan's own
RANKS = integers(1, 2**20)
BATCH = integers(1, 2**24)  # more would take minutes to arrange
SIZE = integers(1, 2**53)


class Arrangement(NamedTuple):
    """The samples of a segment, arranged in batches.

    There are steps x ranks batches; the batches of one step follow each other.

    Attributes:
        places: Entries of the segment's `positions` and `indices` (N,), batch after batch.
        bounds: Start of each batch in `places`, and the end of the last one (B + 1,).
        rows: For packed rows, the start of each row in `places` and the end of the last one (R + 1,).
    """

    places: Int64Array
    bounds: Int64Array
    rows: Int64Array | None = None

    def samples_of_steps(self, ranks: int, size: int) -> Int64Array:
        """Return how many of `size` samples each step (S,) delivers for the first time."""
        numbers = np.arange(len(self.places), dtype=np.int64)
        first = np.empty(size, dtype=np.int64)
        first[self.places[::-1]] = numbers[::-1]
        before = np.concatenate([[0], np.cumsum(first[self.places] == numbers)])
        counts: Int64Array = np.diff(before[self.bounds[::ranks]])
        return counts


@dataclass(frozen=True, eq=False, kw_only=True)
class Segment:
    """Samples that are arranged together, and their steps.

    Attributes:
        start: Samples of all ranks consumed before the segment.
        end: Samples of all ranks consumed when the segment is done.
        positions: Positions in the order (N,), ascending.
        indices: Indices in the dataset (N,).
        arrangement: The batches.
        ranks: Batches of a step.
        steps: Numbers of the arrangement's steps (S,), in the order in which they come.
        ends: Samples consumed after each of these steps (S,).
        history: What a cursor needs to rebuild the segment: a start and a geometry for each segment of the window so far.
        costs: The cost of each batch (S x ranks,), if batches are balanced.
    """

    start: int
    end: int
    positions: Int64Array
    indices: Int64Array
    arrangement: Arrangement
    ranks: int
    steps: Int64Array
    ends: Int64Array
    history: tuple[int, ...]
    costs: Float64Array | None = None

    @cached_property
    def turns(self) -> Int64Array:
        """The number of the batch that each rank gets in each step (S, ranks)."""
        batches = np.arange(len(self.steps) * self.ranks, dtype=np.int64).reshape(-1, self.ranks)
        if self.costs is None or self.ranks == 1:
            return batches
        return batches[:, :1] + take_turns(self.costs.reshape(batches.shape), self.steps)

    def steps_done(self, samples: int) -> int:
        """Return how many steps are done after `samples` consumed samples.

        Raises:
            StateError: If no step ends there.
        """
        if samples == self.start:
            return 0
        step = int(np.searchsorted(self.ends, samples))
        if step == len(self.ends) or self.ends[step] != samples:
            raise StateError(
                f"plan: sample {samples:,} is in the middle of a step, wanted a cursor that this plan gave. "
                "To jump there: loader.seek(epoch=..., samples=...)."
            )
        return step + 1

    def positions_left(self, samples: int) -> Int64Array:
        """Return the positions (M,), ascending, of the steps that are not done after `samples` consumed samples."""
        done = np.zeros(len(self.positions), dtype=bool)
        for step in self.steps[: self.steps_done(samples)].tolist():
            first, last = self.arrangement.bounds[[step * self.ranks, (step + 1) * self.ranks]]
            done[self.arrangement.places[first:last]] = True
        return self.positions[~done]


def end_of_window(start: int, size: int, window: int) -> int:
    """Return the end of the window that contains position `start`. The last window also takes the remainder."""
    number = start // window
    return size if number >= size // window - 1 else (number + 1) * window


def check_history(cursor: Cursor, start: int, geometry: Iterable[int], size: int, rules: Mapping[str, Rule]) -> None:
    """Raise a StateError if a segment in a cursor's history is out of range.

    Args:
        cursor: The cursor.
        start: Where the segment begins.
        geometry: The segment's geometry.
        size: Samples of the epoch.
        rules: For each number of the geometry, what it may be.
    """
    if not 0 <= start < size:
        raise bad_cursor("plan", list(cursor.plan), f"a start from 0 to {size - 1:,}")
    for (name, rule), number in zip(rules.items(), geometry, strict=False):
        if not rule.holds(number):
            raise bad_cursor("plan", list(cursor.plan), f"{rule.wanted} as its {name}")
