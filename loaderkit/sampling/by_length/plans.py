"""Batches of samples of like lengths: buckets of a fixed size, and batches under a budget of tokens."""

from bisect import bisect_right
from typing import get_args

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.by_length.checks import (
    TAILS,
    TooLong,
    check_count,
    check_longest,
    check_too_long,
    small_window,
    too_few,
)
from loaderkit.sampling.by_length.line import Room
from loaderkit.sampling.by_length.segment import Cut, Geometry
from loaderkit.sampling.by_length.summary import longest_times_count
from loaderkit.sampling.by_length.window_plan import WindowPlan
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import Tail
from loaderkit.system.arrays import Int64Array


class LengthBuckets(WindowPlan):
    """Batches of a fixed size whose samples, on all ranks of a step, have like lengths.

    Each window is sorted by length and cut into steps; the steps come in shuffled order. Where a window is no multiple
    of a step, its batches are a little smaller than `batch_size`, evenly.

    Args:
        lengths: Of each sample of the dataset, (N,) integers of at least 0.
        batch_size: Samples a batch and rank, at most.
        window: How many samples are sorted together: half of them, from 1,024 to 32,768, by default. 500 steps'
            worth leave at most about 5 % of padding.
        shuffle: Whether samples and steps come in a new order each epoch.
        seed: Of that.
        order: Another order of the samples, in place of `shuffle`.
        tail: At an epoch's end, as for a Loader; "drop" leaves out some of the last window at random, "pad" repeats some.

    Raises:
        ValueError: If a number is out of range, or the order does not fit the lengths.
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        batch_size: int,
        *,
        window: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        order: Order | None = None,
        tail: Tail = "keep",
    ) -> None:
        super().__init__(lengths, window=window, shuffle=shuffle, seed=seed, order=order, tail=tail)
        check_count(batch_size, "LengthBuckets", "batch_size")
        self.batch_size = int(batch_size)

    @property
    def step(self) -> int:
        return self.world.size * self.batch_size

    @property
    def geometry(self) -> Geometry:
        return self.world.size, self.batch_size, TAILS.index(self.tail)

    def remark(self) -> str | None:
        return small_window("LengthBuckets", self.window, len(self.lengths), self.step, self.world.size)

    def steps_of(self, samples: int, *, last: bool) -> int | None:
        return _steps(samples, self.geometry, last=last)

    def room(self, lengths: Int64Array, geometry: Geometry) -> Room:
        step = geometry[0] * geometry[1]
        return Room(np.ones(len(lengths), dtype=np.int64), step, step)

    def cut(self, lengths: Int64Array, geometry: Geometry, *, last: bool) -> Cut | None:
        ranks, batch_size, tail = geometry
        steps = _steps(len(lengths), geometry, last=last)
        if steps is None:
            if last:
                raise too_few(len(lengths), ranks)
            return None
        wanted = len(lengths)
        if last and TAILS[tail] != "keep":
            wanted = steps * ranks * batch_size
        rows = np.arange(wanted, dtype=np.int64) % len(lengths)  # those that come first in the order
        places = rows[by_length(lengths[rows])]
        batches = steps * ranks
        return Cut(places, np.arange(batches + 1, dtype=np.int64) * wanted // max(1, batches))


class TokenBudget(WindowPlan):
    """Batches of as many samples as a budget of tokens allows, with like lengths on all ranks of a step.

    Each window is sorted by length and filled into batches, from the longest sample down; so many batches are halved that
    their number is a multiple of the ranks'. The steps come in shuffled order. `len()` plans the whole epoch.

    Args:
        lengths: Of each sample of the dataset, in tokens (N,).
        max_tokens: The most a batch of a rank may hold.
        window: How many samples are arranged together: half of them, from 1,024 to 32,768, by default.
        padded: Whether padding counts: the longest length times the samples; otherwise only real tokens do.
        max_samples: The most samples of a batch.
        multiple_of: Padded lengths are rounded up to this, as by the collate.
        too_long: A sample over the budget: "error" refuses it when the plan is made, "drop" leaves it out of each epoch,
            "alone" gives it a batch of its own, over the budget.
        shuffle: Whether samples and steps come in a new order each epoch.
        seed: Of that.
        order: Another order of the samples, in place of `shuffle`.
        tail: Where the last batches can't be shared evenly among the ranks, for want of a batch that can be halved: "keep"
            raises, "drop" leaves them out, "pad" repeats some.

    Raises:
        ValueError: If a number is out of range, a sample is too long, or the order does not fit the lengths.
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        max_tokens: int,
        *,
        window: int | None = None,
        padded: bool = True,
        max_samples: int | None = None,
        multiple_of: int = 1,
        too_long: TooLong = "error",
        shuffle: bool = True,
        seed: int = 0,
        order: Order | None = None,
        tail: Tail = "keep",
    ) -> None:
        super().__init__(lengths, window=window, shuffle=shuffle, seed=seed, order=order, tail=tail)
        for what, value in (
            ("max_tokens", max_tokens),
            ("max_samples", 1 if max_samples is None else max_samples),
            ("multiple_of", multiple_of),
        ):
            check_count(value, "TokenBudget", what)
        self.max_tokens, self.multiple_of = int(max_tokens), int(multiple_of)
        self.max_samples = None if max_samples is None else int(max_samples)
        self.padded, self.too_long = padded, check_too_long(too_long, "TokenBudget")
        if too_long == "error":
            way_out = "or say what to do with such samples: too_long='drop' or 'alone'"
            check_longest(self._costs(self.lengths, multiple_of), max_tokens, "TokenBudget", "max_tokens", way_out)

    @property
    def step(self) -> int:
        return self.world.size * self.max_tokens

    @property
    def geometry(self) -> Geometry:
        choices = 9 * int(self.padded) + 3 * get_args(TooLong).index(self.too_long) + TAILS.index(self.tail)
        return self.world.size, self.max_tokens, self.max_samples or 0, self.multiple_of, choices

    def remark(self) -> str | None:
        ranks = self.world.size
        batch = self.max_tokens / max(1.0, float(self.lengths.mean()))
        needed = ranks * (batch if self.max_samples is None else min(batch, self.max_samples))
        return small_window("TokenBudget", self.window, len(self.lengths), needed, ranks)

    def room(self, lengths: Int64Array, geometry: Geometry) -> Room:
        ranks, budget, most, multiple, choices = geometry
        costs = self._costs(lengths, multiple)
        left_out = (costs > budget) & (get_args(TooLong)[choices // 3 % 3] == "drop")
        return Room(np.where(left_out, 0, np.minimum(costs, budget)), ranks * budget, ranks * (most or budget))

    def cut(self, lengths: Int64Array, geometry: Geometry, *, last: bool) -> Cut | None:
        ranks, budget, most, multiple, choices = geometry
        padded, too_long, tail = choices // 9, get_args(TooLong)[choices // 3 % 3], TAILS[choices % 3]
        places = by_length(lengths)[::-1]
        costs = self._costs(lengths[places], multiple)
        if too_long == "drop":
            fitting = int(np.searchsorted(-costs, -budget))
            places, costs = places[fitting:], costs[fitting:]
        most = most or len(places)
        ends = _fill_padded(costs, budget, most) if padded else _fill_real(costs, budget, most)
        bounds = halved_to_multiple(ends, ranks)
        if bounds is None and not last:
            return None
        if bounds is None:
            bounds = np.array([0, *ends], dtype=np.int64)
            if ends and tail == "keep":
                raise too_few(len(places), ranks)
            if tail == "pad":
                return padded_to_multiple(places, bounds, ranks)
            bounds = bounds[: len(ends) - len(ends) % ranks + 1]
        return Cut(places[: bounds[-1]], bounds)

    def tokens_of(self, lengths: Int64Array, cut: Cut) -> Int64Array:
        if not self.padded:  # the batches are not padded
            total = np.concatenate([[0], np.cumsum(lengths)])
            return np.diff(total[cut.bounds])
        return longest_times_count(-(-lengths // self.multiple_of) * self.multiple_of, cut.bounds)

    def _costs(self, lengths: Int64Array, multiple: int) -> Int64Array:
        """Return what a sample counts: a step at least, so that empty ones fill a batch too."""
        return np.maximum(-(-lengths // multiple) * multiple, 1)


def by_length(lengths: Int64Array) -> Int64Array:
    """Sort rows by length; equal ones stay in their order."""
    if lengths.size and lengths.max() < 1 << 16:
        return np.argsort(lengths.astype(np.uint16), kind="stable")  # by radix: four times as fast
    return np.argsort(lengths, kind="stable")


def halved_to_multiple(ends: list[int], ranks: int) -> Int64Array | None:
    """Return the bounds of batches, the largest of them halved until their number is a multiple of the ranks'."""
    bounds = np.array([0, *ends], dtype=np.int64)
    for _ in range(-len(ends) % ranks):
        sizes = np.diff(bounds)
        largest = int(np.argmax(sizes))
        if sizes[largest] < 2:
            return None
        bounds = np.insert(bounds, largest + 1, bounds[largest] + sizes[largest] // 2)
    return bounds if ends else None


def padded_to_multiple(places: Int64Array, bounds: Int64Array, ranks: int) -> Cut:
    """Repeat batches from the start until their number is a multiple of the ranks'."""
    parts = [places]
    count = len(bounds) - 1
    for number in range(-count % ranks):
        first, last = bounds[number % count], bounds[number % count + 1]
        parts.append(places[first:last])
        bounds = np.append(bounds, bounds[-1] + last - first)
    return Cut(np.concatenate(parts), bounds)


def _steps(samples: int, geometry: Geometry, *, last: bool) -> int | None:
    ranks, batch_size, tail = geometry
    full, rest = divmod(samples, ranks * batch_size)
    if last and TAILS[tail] == "drop":
        return full
    if rest == 0 or (last and TAILS[tail] == "pad"):
        return full + (rest > 0)
    steps = full + 1
    if samples >= steps * ranks:
        return steps
    return full or None  # with batches of one sample the rest joins the others


def _fill_padded(costs: Int64Array, budget: int, most: int) -> list[int]:
    """Return where batches end, of samples by falling cost: each holds as many as its first one's cost allows."""
    counts = np.clip(budget // costs, 1, most).tolist()
    ends, at = [], 0
    while at < len(counts):
        at = min(at + counts[at], len(counts))
        ends.append(at)
    return ends


def _fill_real(costs: Int64Array, budget: int, most: int) -> list[int]:
    """Return where batches end, each with as many samples as fit together."""
    total = np.cumsum(costs).tolist()
    ends, at, before = [], 0, 0
    while at < len(total):
        at = min(max(bisect_right(total, before + budget, at), at + 1), at + most)
        before = total[at - 1]
        ends.append(at)
    return ends
