"""Segments: the stretches of an order that a plan by length arranges together.

A segment is a window of the order. If a run resumes inside a window with another geometry (ranks, batch size), the rest
of that window is one more segment.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.order import Order
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Int64Array

Geometry = tuple[int, ...]  # the settings that shape an arrangement: ranks, batch size or budget, then the plan's own


class Arrangement(NamedTuple):
    """The samples of a segment, arranged in batches.

    There are steps x ranks batches; the batches of one step follow each other.

    Attributes:
        places: Rows of the segment's samples (N,), batch after batch.
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
        end: Samples of all ranks consumed after it.
        positions: Positions in the order (N,), ascending.
        indices: Indices in the dataset (N,).
        arrangement: The batches.
        ranks: Batches of a step.
        steps: Numbers of the arrangement's steps (S,), in the order in which they come.
        ends: Samples consumed after each of these steps (S,).
        history: What a cursor needs to rebuild the segment: a start and a geometry for each segment of the window so far.
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

    def steps_done(self, samples: int) -> int:
        """Return how many steps are done after `samples` consumed samples.

        Raises:
            ValueError: If no step ends there.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """Builds the segment that contains a cursor, as a pure function of the cursor and the reader's geometry.

    `cursor.plan` is the history of the open window: for each geometry it was arranged with, the samples consumed when
    that segment began, then the geometry. Nothing is counted for each sample.

    Args:
        name: The plan's name, for errors.
        order: The order of the samples.
        lengths: Of each sample of the dataset (N,).
        window: Samples arranged together.
        seed: Of the shuffle of steps.
        shuffle_steps: Whether the steps of a segment come in shuffled order.
        arrange: `WindowPlan.arrange`, which turns samples into batches.
    """

    name: str
    order: Order
    lengths: Int64Array
    window: int
    seed: int
    shuffle_steps: bool
    arrange: Callable[..., Arrangement | None]

    def segment(self, cursor: Cursor, geometry: Geometry) -> Segment | None:
        """Return the segment that a run with this geometry reads at a cursor; None at the epoch's end.

        Raises:
            ValueError: If the cursor is damaged, or the ranks can't share the end of the epoch.
        """
        segment = self._restore(cursor, 1 + len(geometry)) if cursor.plan else None
        if segment is not None and segment.history[-len(geometry) :] == geometry:
            return segment
        return self._next(cursor.epoch, segment, cursor.samples, geometry)

    def whole(self, epoch: int, geometry: Geometry, start: int = 0) -> Iterator[Segment]:
        """Yield the segments of an epoch from `start` on, as a run without interruption reads them."""
        while (segment := self._next(epoch, None, start, geometry)) is not None:
            yield segment
            start = segment.end

    def _restore(self, cursor: Cursor, width: int) -> Segment | None:
        """Rebuild a segment from its history, `width` numbers for each geometry."""
        if len(cursor.plan) % width:
            raise ValueError(
                f"cannot resume: the cursor's plan has {len(cursor.plan)} numbers, wanted a multiple of {width} for "
                f"{self.name}. The state is damaged, or of another plan."
            )
        segment: Segment | None = None
        for place in range(0, len(cursor.plan), width):
            start, *geometry = cursor.plan[place : place + width]
            try:
                beyond = segment is None and start >= self._size(cursor.epoch)
                if beyond or min(start, *geometry) < 0 or min(geometry[:2]) < 1:
                    raise ValueError("a number is out of range")
                segment = self._next(cursor.epoch, segment, start, tuple(geometry))
            except (ArithmeticError, LookupError, ValueError) as error:
                raise ValueError(
                    f"cannot resume: {self.name} can't arrange the samples from {start} on by {geometry}, as the cursor's "
                    "plan says. The state is damaged, or of other data."
                ) from error
        return segment

    def _next(self, epoch: int, previous: Segment | None, start: int, geometry: Geometry) -> Segment | None:
        """Arrange what `previous` has left at `start`, or a new window; None at the epoch's end.

        If that gives no batch for each rank, the segment takes the next window too.
        """
        size = self._size(epoch)
        history: tuple[int, ...] = ()
        if previous is not None:
            end, positions, history = previous.end, previous.positions_left(start), previous.history
        elif start < size:
            end = end_of_window(start, size, self.window)
            positions = np.arange(start, end, dtype=np.int64)
        else:
            return None
        indices = self.order.at(epoch, positions)
        while (found := self.arrange(self.lengths[indices], geometry, last=end == size)) is None:
            more = np.arange(end, end_of_window(end, size, self.window), dtype=np.int64)
            end += len(more)
            positions, indices = np.append(positions, more), np.append(indices, self.order.at(epoch, more))
        ranks = geometry[0]
        steps = np.arange((len(found.bounds) - 1) // ranks, dtype=np.int64)
        if self.shuffle_steps:
            steps = np.argsort(hash_positions(steps, "steps", self.seed, epoch, start), kind="stable")
        ends = start + np.cumsum(found.samples_of_steps(ranks, len(positions))[steps])
        ends[-1:] = end  # samples that the tail policy or too_long leaves out count as consumed
        return Segment(
            start=start,
            end=end,
            positions=positions,
            indices=indices,
            arrangement=found,
            ranks=ranks,
            steps=steps,
            ends=ends,
            history=(*history, start, *geometry),
        )

    def _size(self, epoch: int) -> int:
        return int(self.order.size(epoch))
