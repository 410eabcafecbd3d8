"""Plans that arrange samples by their lengths: the order is cut into windows, each window into steps of like lengths."""

import copy
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.by_length.checks import as_lengths, check_count, check_order, check_tail
from loaderkit.sampling.by_length.line import Room
from loaderkit.sampling.by_length.segment import Cut, Geometry, Segment
from loaderkit.sampling.by_length.segments import Cutter, is_border
from loaderkit.sampling.by_length.summary import Batches, PlanSummary, longest_times_count, summarise
from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.order import Order, Sequential, Shuffled, digest
from loaderkit.sampling.plan import BatchKey, Plan, Tail
from loaderkit.system.arrays import Int64Array
from loaderkit.system.world import World

LARGEST_WINDOW, LEAST_WINDOW = 1 << 15, 1 << 10  # by default
_KEPT = 4  # segments; a loader asks for the one it reads, and for where it began


def default_window(samples: int) -> int:
    """Return how many of so many samples are arranged together where nobody says it: half of them, from 1,024 to 32,768.

    A larger window has less padding. In one that holds all of the data a sample would meet the same others in every epoch.
    """
    return min(LARGEST_WINDOW, max(LEAST_WINDOW, samples // 2))


class WindowPlan(Plan):
    """Steps made of windows of an order; which samples share a step depends on their lengths.

    A window's steps come in shuffled order. A cursor within a window names the geometry (ranks, batch size) that the
    window was cut with: a run that goes on with another one then knows what is left, and cuts that anew. After several changes
    in one window the rest of it is dealt in a line instead, for which no more of them have to be named.

    Args:
        lengths: Of each sample of the dataset, (N,) integers of at least 0.
        window: How many samples are arranged together. It shapes the order, and bounds the memory. By default as
            `default_window` says.
        shuffle: Whether samples, and the steps of a window, come in a new order each epoch.
        seed: Of that.
        order: Another order of the samples, in place of `shuffle`; the steps of a window are shuffled then.
        tail: What becomes of an epoch's last samples.

    Raises:
        ValueError: If a number is out of range, or the order does not fit the lengths.
    """

    alike = True  # whether a step wants samples of like lengths

    def __init__(
        self, lengths: npt.ArrayLike, *, window: int | None, shuffle: bool, seed: int, order: Order | None, tail: Tail
    ) -> None:
        name = type(self).__name__
        self.lengths = as_lengths(lengths, name)
        window = default_window(len(self.lengths)) if window is None else window
        check_count(window, name, "window")
        if order is None:
            order = Shuffled(len(self.lengths), seed=seed) if shuffle else Sequential(len(self.lengths))
            self._mixed = shuffle
        else:
            check_order(order, self.lengths, name)
            self._mixed = True
        self.order, self.window, self.seed = order, int(window), seed
        self.world, self.tail = World(), check_tail(tail, name)
        self._digest = digest(self.lengths)
        self._segments: dict[Any, Segment | None] = {}
        self._chains: dict[Any, tuple[Int64Array, Int64Array]] = {}

    @property
    @abstractmethod
    def geometry(self) -> Geometry:
        """Return what a cut depends on beside the lengths, the ranks first; as many ints for all plans of the class."""

    @abstractmethod
    def cut(self, lengths: Int64Array, geometry: Geometry, *, last: bool) -> Cut | None:
        """Arrange samples of lengths (N,); None if they are too few for a batch on each rank.

        Args:
            lengths: In the order's order.
            geometry: Of this plan, or of the run that began the window.
            last: Whether nothing comes after them: then the tail policy decides what can't be spread evenly.
        """

    @abstractmethod
    def room(self, lengths: Int64Array, geometry: Geometry) -> Room:
        """Return what a step has room for, and what samples of lengths (N,) take of it."""

    def steps_of(self, samples: int, *, last: bool) -> int | None:
        """Return the steps of a window, where these don't depend on the lengths."""
        return None

    def with_world(self, world: World) -> Self:
        changed = copy.copy(self)
        changed.world, changed._segments, changed._chains = world, {}, {}
        return changed

    def key(self, epoch: int) -> str:
        how = "mixed" if self._mixed else "in order"
        name = type(self).__name__.lower()
        return f"{name}-1({self.order.key(epoch)}, {how} by {self.window}, seed={self.seed}, lengths={self._digest})"

    def remaining(self, cursor: Cursor) -> int:
        segment = self._segment(cursor)
        if segment is None:
            return 0
        return len(segment.turns) - segment.done(cursor.samples) + self._steps_from(cursor.epoch, segment.end)

    def placed(self, cursor: Cursor) -> Cursor:
        # A window that was cut a second time may have more steps than it would have had.
        done = max(0, self.batches(cursor.epoch) - self.remaining(cursor))
        return Cursor(epoch=cursor.epoch, samples=cursor.samples, batches=done, plan=cursor.plan)

    def advance(self, cursor: Cursor, batches: int = 1) -> Cursor:
        while (left := self.remaining(cursor)) <= batches:
            if left == 0 and cursor.samples == 0:
                return cursor  # an epoch without batches: nowhere to go
            batches -= left
            cursor = cursor.next_epoch()
        done = cursor.batches + batches
        while batches:
            segment = self._segment(cursor)
            if segment is None:
                raise RuntimeError("plan: an epoch ended before its last batch.")
            first = segment.done(cursor.samples)
            if first + batches < len(segment.turns):
                samples = int(segment.ends[first + batches - 1])
                return Cursor(epoch=cursor.epoch, samples=samples, batches=done, plan=segment.origin)
            batches -= len(segment.turns) - first
            samples, batches = self._skip(cursor.epoch, segment.end, batches)
            cursor = Cursor(epoch=cursor.epoch, samples=samples, batches=done)
        return cursor

    def keys(self, cursor: Cursor) -> Iterator[BatchKey]:
        while (segment := self._segment(cursor)) is not None:
            cut = segment.cut
            for step in segment.turns[segment.done(cursor.samples) :].tolist():
                batch = step * self.world.size + self.world.rank
                first, last = cut.bounds[batch], cut.bounds[batch + 1]
                places = cut.places[first:last]
                rows = None
                if cut.rows is not None:
                    rows = cut.rows[slice(*np.searchsorted(cut.rows, [first, last + 1]))] - first
                yield BatchKey(cursor.epoch, segment.positions[places], segment.indices[places], rows)
            cursor = Cursor(epoch=cursor.epoch, samples=segment.end)

    def summary(self, epoch: int = 0) -> PlanSummary:
        """Say how many batches an epoch has, and how much of them is padding; plans the whole epoch, and reads nothing."""
        return summarise(
            map(self._batches_of, self.segments(epoch)), epoch=epoch, ranks=self.world.size, size=self._size(epoch)
        )

    def tokens_of(self, lengths: Int64Array, cut: Cut) -> Int64Array:
        """Return the tokens of each batch (B,), padding included.

        Args:
            lengths: Of the cut's samples, batch after batch.
            cut: Says where batches begin.
        """
        return longest_times_count(lengths, cut.bounds)

    def segments(self, epoch: int) -> Iterator[Segment]:
        """Yield an epoch's segments, as a run without interruption has them."""
        cursor = Cursor(epoch=epoch)
        while (segment := self._segment(cursor)) is not None:
            yield segment
            cursor = Cursor(epoch=epoch, samples=segment.end)

    def _batches_of(self, segment: Segment) -> Batches:
        places = segment.cut.places
        lengths = self.lengths[segment.indices[places]]
        samples = len(np.unique(places))
        return Batches(self.tokens_of(lengths, segment.cut), int(lengths.sum()), samples, len(places) - samples)

    def _segment(self, cursor: Cursor) -> Segment | None:
        """Return what a run at the cursor reads from, None at the epoch's end."""
        geometry, segments = self.geometry, self._segments  # never written to: another thread may look there
        over = len(cursor.plan) % (2 + len(geometry))
        known = not over and cursor.plan[-len(geometry) :] == geometry
        where = (cursor.epoch, cursor.plan, 0 if known else cursor.samples)
        if over:  # in line: also one that a run began before
            kept = ((key, segment) for key, segment in segments.items() if segment and key[0] == cursor.epoch)
            same = (key for key, segment in kept if segment.origin == cursor.plan and segment.has(cursor.samples))
            where = next(same, where)
        if where not in segments:
            segment = self._cutter.segment(cursor, geometry, keep=self.tail == "keep")
            self._segments = segments = dict([*segments.items(), (where, segment)][-_KEPT:])
        return segments[where]

    @property
    def _cutter(self) -> Cutter:
        return Cutter(
            name=type(self).__name__,
            order=self.order,
            lengths=self.lengths,
            window=self.window,
            seed=self.seed,
            mixed=self._mixed,
            alike=self.alike,
            cut=self.cut,
            room=self.room,
        )

    def _steps_from(self, epoch: int, start: int) -> int:
        """Return the steps of the windows from one on."""
        if not is_border(start, self._size(epoch), self.window):  # a line took of it
            segment = self._segment(Cursor(epoch=epoch, samples=start))
            return len(segment.turns) + self._steps_from(epoch, segment.end) if segment else 0
        full, last = self._regular(epoch, start)
        if full is not None:
            return full[0] * full[1] + last
        starts, before = self._chain(epoch, start)
        return int(before[-1] - before[np.searchsorted(starts, start)])

    def _skip(self, epoch: int, start: int, steps: int) -> tuple[int, int]:
        """Return where the window begins that has the step so many steps after a window's start, and how far in it is."""
        if not is_border(start, self._size(epoch), self.window):
            segment = self._segment(Cursor(epoch=epoch, samples=start))
            if segment is None or steps < len(segment.turns):
                return start, steps
            return self._skip(epoch, segment.end, steps - len(segment.turns))
        full, _ = self._regular(epoch, start)
        if full is not None:
            count, each = full
            windows = min(count, steps // each) if each else 0
            return start + windows * self.window, steps - windows * each
        starts, before = self._chain(epoch, start)
        steps += int(before[np.searchsorted(starts, start)])
        place = min(int(np.searchsorted(before, steps, side="right")) - 1, len(starts) - 1)
        return int(starts[place]), steps - int(before[place])

    def _regular(self, epoch: int, start: int) -> tuple[tuple[int, int] | None, int]:
        """Return how many full windows follow and the steps of each, and those of the last, if lengths don't matter."""
        size = self._size(epoch)
        each = self.steps_of(self.window, last=False)
        if each is None:
            return None, 0
        count = max(0, max(1, size // self.window) - 1 - start // self.window) if start < size else 0
        left = size - start - count * self.window
        last = self.steps_of(left, last=True) if left > 0 else 0
        return (count, each), last or 0

    def _chain(self, epoch: int, start: int) -> tuple[Int64Array, Int64Array]:
        """Return where windows begin (W + 1,), one of them at `start`, and how many steps of them come before each."""
        for (planned, _), (starts, before) in self._chains.items():
            if planned == epoch and starts[np.searchsorted(starts, start)] == start:
                return starts, before
        found, counts, at, cutter, geometry = [start], [0], start, self._cutter, self.geometry
        while (segment := cutter.fresh(epoch, at, geometry)) is not None:
            at = segment.end
            found.append(at)
            counts.append(len(segment.turns))
        chain = np.array(found, dtype=np.int64), np.cumsum(counts, dtype=np.int64)
        self._chains = {key: value for key, value in self._chains.items() if key[0] == epoch} | {(epoch, start): chain}
        return chain

    def _size(self, epoch: int) -> int:
        return int(self.order.size(epoch))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_segments": {}, "_chains": {}}
