"""The base of plans by length: an order in windows, each arranged in steps of samples with like lengths."""

import copy
import functools
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.by_length.balance import Cost, cost_key, costs_of, sort_batches
from loaderkit.sampling.by_length.checks import TAILS, as_lengths, check_order
from loaderkit.sampling.by_length.segments import Arrangement, Geometry, Segment, check_history, end_of_window
from loaderkit.sampling.by_length.step_counts import StepCounts
from loaderkit.sampling.by_length.summary import BatchCounts, PlanSummary, longest_times_count, summarise
from loaderkit.sampling.cursor import Cursor, bad_cursor
from loaderkit.sampling.order import Order, Sequential, Shuffled, indices_at
from loaderkit.sampling.plan import BatchKey, Plan, Tail
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Float64Array, Int64Array
from loaderkit.system.checks import check_choice, check_integer
from loaderkit.system.digests import digest
from loaderkit.system.state import Rule, StateError
from loaderkit.system.world import World

_LARGEST_WINDOW, _LEAST_WINDOW = 1 << 15, 1 << 10  # by default
_SHOWN = ("ranks", "batch size", "row_length", "max_tokens", "max_samples")  # numbers of the geometry in a repr
_KEPT = 4  # segments in memory: a loader reads one, and asks for the one where it began


def default_window(samples: int) -> int:
    """Return half of the samples, from 1,024 to 32,768.

    A larger window gives less padding. A window of all samples would put the same samples together in each epoch.
    """
    return min(_LARGEST_WINDOW, max(_LEAST_WINDOW, samples // 2))


class WindowPlan(Plan):
    """A plan that arranges each window of an order by the lengths of its samples.

    The steps of a window come in shuffled order. A cursor inside a window names the geometry (ranks, batch size) that
    the window was arranged with. A run with another geometry thus knows which samples are left, and arranges these.

    Each such change within one window adds a few integers to the state; the next window starts without them. The state
    stays under 1 KB for 12 changes in one window. More changes stay exact, in a larger state.

    Args:
        lengths: Length of each sample of the dataset, integers of at least 0 (N,).
        window: Samples arranged together. It shapes the order and bounds the memory. See `default_window`.
        shuffle: Whether samples, and the steps of a window, come in a new order each epoch.
        seed: The seed of the shuffle.
        order: Another order of the samples, instead of `shuffle`; the steps of a window are shuffled.
        tail: What happens to an epoch's last samples.
        balance: A function from samples' lengths (N,) to their costs (N,). Then the batches of a step cost about the
            same.

    Raises:
        ValueError: If a number is out of range, or the order does not fit the lengths.
    """

    rules: ClassVar[Mapping[str, Rule]]  # for each number of the geometry, its name and what it may be in a state

    order: Order
    lengths: Int64Array

    def __init__(
        self,
        lengths: "npt.ArrayLike",
        *,
        window: int | None,
        shuffle: bool,
        seed: int,
        order: Order | None,
        tail: Tail,
        balance: Cost | None,
    ) -> None:
        name = type(self).__name__
        self.lengths = as_lengths(lengths, name)
        window = default_window(len(self.lengths)) if window is None else window
        check_integer(name, "window", window, 1)
        check_choice(name, "tail", tail, TAILS)
        if order is None:
            order = Shuffled(len(self.lengths), seed=seed) if shuffle else Sequential(len(self.lengths))
            self._shuffle_steps = shuffle
        else:
            check_order(order, self.lengths, name)
            self._shuffle_steps = True
        self.order, self.window, self.seed, self.tail = order, int(window), seed, tail
        self.world = World()
        self._digest = digest(self.lengths)
        self.balance = balance
        self._balanced_by = "" if balance is None else f", balance-1={cost_key(balance, self.lengths, name)}"
        self._segments: dict[object, Segment | None] = {}

    def __repr__(self) -> str:
        try:
            size, numbers = len(self.lengths), zip(self.rules, self.geometry, strict=True)
            named = [f"{name} {number:,}" for name, number in numbers if name in _SHOWN and number]
        except Exception:  # a debugger may show an object whose `__init__` has not finished
            return object.__repr__(self)
        order = "shuffled" if self._shuffle_steps else "in order"
        return (
            f"{type(self).__name__}: {size:,} sample{'s' * (size != 1)}, {order} by {self.window:,}; {', '.join(named)}"
        )

    @property
    @abstractmethod
    def geometry(self) -> Geometry:
        """Return the settings that shape an arrangement, ranks first; equally many integers for all plans of a class."""

    @abstractmethod
    def arrange(self, lengths: Int64Array, geometry: Geometry, *, last: bool) -> Arrangement | None:
        """Turn samples into batches; return None if they give no batch for each rank and more samples follow.

        Args:
            lengths: Lengths of the samples, by position (N,).
            geometry: The geometry of this plan, or of the run that began the window.
            last: Whether the epoch ends with these samples. Then the tail policy applies.
        """

    def steps_of(self, samples: int, *, last: bool) -> int | None:
        """Return the number of steps of a window, if it does not depend on the lengths."""
        return None

    def with_world(self, world: World) -> Self:
        changed = copy.copy(self)
        changed.world = world
        return changed

    def key(self, epoch: int) -> str:
        how = "mixed" if self._shuffle_steps else "in order"
        name = type(self).__name__.lower()
        made = f"{self.order.key(epoch)}, {how} by {self.window}, seed={self.seed}, lengths={self._digest}"
        return f"{name}-1({made}{self._balanced_by})"

    def check_cursor(self, cursor: Cursor) -> None:
        self._restore(cursor)

    def remaining(self, cursor: Cursor) -> int:
        segment = self._segment(cursor)
        if segment is None:
            return 0
        return len(segment.steps) - segment.steps_done(cursor.samples) + self._steps.after(cursor.epoch, segment.end)

    def advance(self, cursor: Cursor, batches: int = 1) -> Cursor:
        cursor, batches = self._skip_epochs(cursor, batches)
        done = cursor.batches + batches
        while batches:
            segment = self._segment(cursor)
            if segment is None:
                raise RuntimeError("plan: an epoch ended before its last batch.")
            first = segment.steps_done(cursor.samples)
            if first + batches < len(segment.steps):
                samples = int(segment.ends[first + batches - 1])
                return Cursor(epoch=cursor.epoch, samples=samples, batches=done, plan=segment.history)
            batches -= len(segment.steps) - first
            samples, batches = self._steps.skip(cursor.epoch, segment.end, batches)
            cursor = Cursor(epoch=cursor.epoch, samples=samples, batches=done)
        return cursor

    def keys(self, cursor: Cursor) -> Iterator[BatchKey]:
        while (segment := self._segment(cursor)) is not None:
            found = segment.arrangement
            for step in segment.steps[segment.steps_done(cursor.samples) :].tolist():
                batch = segment.turns[step, self.world.rank]
                first, last = found.bounds[batch], found.bounds[batch + 1]
                places = found.places[first:last]
                rows = None
                if found.rows is not None:
                    rows = found.rows[slice(*np.searchsorted(found.rows, [first, last + 1]))] - first
                yield BatchKey(cursor.epoch, segment.positions[places], segment.indices[places], rows)
            cursor = Cursor(epoch=cursor.epoch, samples=segment.end)

    def summary(self, epoch: int = 0, *, cost: Cost | None = None) -> PlanSummary:
        """Return the number of batches of an epoch and their padding. Plans the whole epoch; reads no data.

        Args:
            epoch: Number of the epoch.
            cost: The costs that `rank_spread` compares, as for `balance=`. By default the plan's; without these,
                tokens.
        """
        cost = self.balance if cost is None else cost
        counts = [self._counts(segment, cost) for segment in self.segments(epoch)]
        return summarise(counts, epoch=epoch, ranks=self.world.size, size=self.size(epoch))

    def tokens_of(self, lengths: Int64Array, arrangement: Arrangement) -> Int64Array:
        """Return the tokens of each batch (B,), padding included. `lengths` (N,) are those of the arrangement's samples."""
        return longest_times_count(lengths, arrangement.bounds)

    def costs_of(self, lengths: Int64Array, arrangement: Arrangement, cost: Cost, geometry: Geometry) -> Float64Array:
        """Return the cost of each batch (B,). Here each sample costs as much as its batch's longest: it is padded."""
        if len(arrangement.bounds) < 2:
            return np.empty(0)
        longest = np.maximum.reduceat(lengths[arrangement.places], arrangement.bounds[:-1])
        return np.diff(arrangement.bounds) * costs_of(cost, longest)

    def balanced(self, lengths: Int64Array, arrangement: Arrangement, cost: Cost, geometry: Geometry) -> Arrangement:
        """Return the arrangement with batches of like cost in each step."""
        return sort_batches(arrangement, self.costs_of(lengths, arrangement, cost, geometry))

    def _counts(self, segment: Segment, cost: Cost | None) -> BatchCounts:
        places = segment.arrangement.places
        lengths = self.lengths[segment.indices[places]]
        samples = len(np.unique(places))
        padded = self.tokens_of(lengths, segment.arrangement)
        costs = None
        if cost is not None:
            costs = self.costs_of(self.lengths[segment.indices], segment.arrangement, cost, self.geometry)
        return BatchCounts(padded, int(lengths.sum()), samples, len(places) - samples, costs)

    def _segment(self, cursor: Cursor) -> Segment | None:
        """Return the segment that a run reads at the cursor, None at the epoch's end."""
        geometry, segments = self.geometry, self._segments
        inside = cursor.plan[-len(geometry) :] == geometry  # the same segment wherever in it the cursor is
        where = (cursor.epoch, cursor.plan, 0 if inside else cursor.samples)
        if where not in segments:
            segment = self._find_segment(cursor)
            # A new dict: another thread may read the old one.
            self._segments = segments = dict([*segments.items(), (where, segment)][-_KEPT:])
        return segments[where]

    def _find_segment(self, cursor: Cursor) -> Segment | None:
        """Build the segment that a run reads at a cursor; None at the epoch's end.

        `cursor.plan` is the history of the open window: for each geometry it was arranged with, the samples consumed when
        that segment began, then the geometry.

        Raises:
            StateError: If the cursor is damaged.
            ValueError: If the ranks can't share the end of the epoch.
        """
        geometry = self.geometry
        segment = self._restore(cursor) if cursor.plan else None
        if segment is not None and segment.history[-len(geometry) :] == geometry:
            return segment
        return self._next(cursor.epoch, segment, cursor.samples, geometry)

    def segments(self, epoch: int, start: int = 0) -> Iterator[Segment]:
        """Yield the segments of an epoch from `start` on, as a run without interruption reads them."""
        while (segment := self._next(epoch, None, start, self.geometry)) is not None:
            yield segment
            start = segment.end

    def _restore(self, cursor: Cursor) -> Segment | None:
        """Rebuild the segment that contains a cursor from its history; None without a history.

        Raises:
            StateError: If the cursor's plan is not such a history, or no step ends at the cursor.
        """
        width, segment = 1 + len(self.rules), None
        if len(cursor.plan) % width:
            raise bad_cursor("plan", list(cursor.plan), f"a multiple of {width} numbers for {type(self).__name__}")
        for place in range(0, len(cursor.plan), width):
            start, *geometry = cursor.plan[place : place + width]
            own = tuple(geometry) == self.geometry  # is never refused
            check_history(cursor, start, geometry, self.size(cursor.epoch), {} if own else self.rules)
            try:
                segment = self._next(cursor.epoch, segment, start, tuple(geometry))
            except (ArithmeticError, LookupError, ValueError) as error:
                raise StateError(
                    f"cannot resume: {type(self).__name__} can't arrange the samples from {start} on by {geometry}, as the cursor's "
                    "plan says. The state is damaged, or of other data."
                ) from error
        if segment is not None:
            segment.steps_done(cursor.samples)
        return segment

    def _next(self, epoch: int, previous: Segment | None, start: int, geometry: Geometry) -> Segment | None:
        """Arrange the samples that `previous` has left at `start`, or a new window. Return None at the epoch's end.

        If these samples give no batch for each rank, the segment takes the next window too.
        """
        size = self.size(epoch)
        history: tuple[int, ...] = ()
        if previous is not None:
            end, positions, history = previous.end, previous.positions_left(start), previous.history
        elif start < size:
            end = end_of_window(start, size, self.window)
            positions = np.arange(start, end, dtype=np.int64)
        else:
            return None
        indices = indices_at(self.order, epoch, positions)
        while (found := self.arrange(self.lengths[indices], geometry, last=end == size)) is None:
            more = np.arange(end, end_of_window(end, size, self.window), dtype=np.int64)
            end += len(more)
            positions, indices = np.append(positions, more), np.append(indices, indices_at(self.order, epoch, more))
        ranks, costs = geometry[0], None
        if self.balance is not None:
            lengths = self.lengths[indices]
            found = self.balanced(lengths, found, self.balance, geometry)
            costs = self.costs_of(lengths, found, self.balance, geometry)
        steps = np.arange((len(found.bounds) - 1) // ranks, dtype=np.int64)
        if self._shuffle_steps:
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
            costs=costs,
        )

    @functools.cached_property
    def _steps(self) -> StepCounts:
        return StepCounts(self)

    def size(self, epoch: int) -> int:
        """Return the number of samples of an epoch."""
        return int(self.order.size(epoch))

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_steps"} | {"_segments": {}}
