"""A stretch of an order that is arranged together: its batches, and how far a run is in it."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loaderkit.system.arrays import Int64Array

Geometry = tuple[int, ...]  # what a cut depends on beside the lengths, the ranks first


class Cut(NamedTuple):
    """Samples arranged in batches, steps x ranks of them, those of a step next to each other.

    places (N,) are rows of the samples' lengths, batch after batch; bounds (batches + 1,) say where each batch begins.
    Where a batch has rows of several samples, rows (R + 1,) say where each of these begins, and all bounds are among them.
    """

    places: Int64Array
    bounds: Int64Array
    rows: Int64Array | None = None

    def samples_of_steps(self, ranks: int, size: int) -> Int64Array:
        """Return how many samples each step (S,) takes of `size`; in padded batches some come again, and count once."""
        numbers = np.arange(len(self.places), dtype=np.int64)
        first = np.empty(size, dtype=np.int64)
        first[self.places[::-1]] = numbers[::-1]
        before = np.concatenate([[0], np.cumsum(first[self.places] == numbers)])
        counts: Int64Array = np.diff(before[self.bounds[::ranks]])
        return counts


@dataclass(frozen=True, eq=False, kw_only=True)
class Segment:
    """Samples that are arranged together: a window, or what was left of one where a run went on with another geometry.

    Or the line in which the rest of a window is dealt after several of these.
    """

    start: int  # samples consumed before it, over all ranks
    end: int  # and after it
    positions: Int64Array  # (N,) in the order; ascending, if it is not a line
    indices: Int64Array  # (N,) in the dataset
    cut: Cut
    ranks: int
    turns: Int64Array  # (S,) in which order the cut's steps come
    ends: Int64Array  # (S,) samples consumed after each of these
    origin: tuple[int, ...]  # what a cursor within it has to say, so that it can be made again

    def has(self, samples: int) -> bool:
        """Say whether one of its steps begins behind so many consumed samples."""
        return samples == self.start or (samples < self.end and samples in self.ends)

    def done(self, samples: int) -> int:
        """Return how many steps end at or before so many consumed samples.

        Raises:
            ValueError: If one ends behind them.
        """
        if samples == self.start:
            return 0
        step = int(np.searchsorted(self.ends, samples))
        if step == len(self.ends) or self.ends[step] != samples:
            raise ValueError(
                f"plan: sample {samples:,} is in the middle of a step, wanted a cursor that this plan gave. "
                "To jump there: loader.seek(epoch=..., samples=...)."
            )
        return step + 1

    def left(self, samples: int) -> Int64Array:
        """Return the positions (M,), ascending, that do not belong to the steps that are done."""
        taken = np.zeros(len(self.positions), dtype=bool)
        for step in self.turns[: self.done(samples)].tolist():
            taken[self.cut.places[slice(*self.cut.bounds[[step * self.ranks, (step + 1) * self.ranks]])]] = True
        return self.positions[~taken]
