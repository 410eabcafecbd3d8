"""Batches of samples with like lengths: buckets of a fixed size, and batches under a budget of tokens."""

from bisect import bisect_right
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.by_length.balance import Cost, costs_of, sums
from loaderkit.sampling.by_length.checks import TAILS, TOO_LONG, TooLong, check_longest, small_window, too_few
from loaderkit.sampling.by_length.segments import BATCH, RANKS, SIZE, Arrangement, Geometry
from loaderkit.sampling.by_length.summary import longest_times_count
from loaderkit.sampling.by_length.window_plan import WindowPlan
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import Tail
from loaderkit.system.arrays import Float64Array, Int64Array
from loaderkit.system.checks import check_choice, check_integer
from loaderkit.system.state import Rule, integers


class LengthBuckets(WindowPlan):
    """Batches of a fixed size and of like lengths.

    All samples of a step, over all ranks, have like lengths.
    The plan sorts each window by length and cuts it into steps, which come in shuffled order. If a window is not a
    multiple of a step, its batches are a little smaller than `batch_size`, evenly.

    Args:
        lengths: Length of each sample of the dataset, integers of at least 0 (N,).
        batch_size: The most samples of a batch, for each rank.
        window: Samples that are sorted together; by default half of all samples, from 1,024 to 32,768. With 500 steps
            in a window, padding is at most about 5 %.
        shuffle: Whether samples and steps come in a new order each epoch.
        seed: The seed of the shuffle.
        order: Another order of the samples, instead of `shuffle`.
        tail: What happens to an epoch's last samples, as for a Loader. "drop" leaves out the order's last samples,
            "pad" repeats the first samples of the last window.
        balance: What a sample costs by its length: `lk.AttentionCost(hidden_size=...)`, or a function from lengths (N,) to
            costs (N,). Then the batches of one step cost about the same on all ranks, and so do the ranks' sums over the steps of
            a gradient accumulation.

    Raises:
        ValueError: If a number is out of range, or the order does not fit the lengths.

    Examples:
        >>> samples = [torch.ones(n) for n in (3, 9, 4, 8)]
        >>> plan = lk.LengthBuckets([3, 9, 4, 8], batch_size=2)
        >>> loader = lk.Loader(samples, plan=plan, collate_fn=lk.PadCollate())
        >>> sorted(tuple(batch.shape) for batch in loader)
        [(2, 4), (2, 9)]
    """

    rules: ClassVar[Mapping[str, Rule]] = {"ranks": RANKS, "batch size": BATCH, "tail": integers(0, len(TAILS) - 1)}

    def __init__(
        self,
        lengths: "npt.ArrayLike",
        batch_size: int,
        *,
        window: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        order: Order | None = None,
        tail: Tail = "keep",
        balance: Cost | None = None,
    ) -> None:
        super().__init__(lengths, window=window, shuffle=shuffle, seed=seed, order=order, tail=tail, balance=balance)
        check_integer("LengthBuckets", "batch_size", batch_size, 1)
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

    def arrange(self, lengths: Int64Array, geometry: Geometry, *, last: bool) -> Arrangement | None:
        ranks, batch_size, tail = geometry
        steps = _steps(len(lengths), geometry, last=last)
        if steps is None:
            if last:
                raise too_few(len(lengths), ranks)
            return None
        wanted = len(lengths)
        if last and TAILS[tail] != "keep":
            wanted = steps * ranks * batch_size
        rows = np.arange(wanted, dtype=np.int64) % len(lengths)  # "drop" and "pad" take the first samples in the order
        places = rows[_by_length(lengths[rows])]
        batches = steps * ranks
        return Arrangement(places, np.arange(batches + 1, dtype=np.int64) * wanted // max(1, batches))


class TokenBudget(WindowPlan):
    """Batches with as many samples as a budget of tokens allows.

    Lengths are alike on all ranks of a step.
    The plan sorts each window by length and fills batches from the longest sample down. It halves the largest batches
    until their number is a multiple of the ranks. The steps come in shuffled order. `len()` plans the whole epoch.

    Args:
        lengths: Length of each sample of the dataset, in tokens (N,).
        max_tokens: The most tokens of a batch, for each rank.
        window: Samples that are arranged together; by default half of all samples, from 1,024 to 32,768.
        padded: Whether padding counts: a batch counts its longest length times its samples. Otherwise only real tokens
            count.
        max_samples: The most samples of a batch; None means no limit.
        multiple_of: The collate pads lengths to a multiple of this.
        too_long: What happens to a sample over the budget: "error" refuses it when the plan is made, "drop" leaves it
            out, "alone" gives it a batch of its own.
        shuffle: Whether samples and steps come in a new order each epoch.
        seed: The seed of the shuffle.
        order: Another order of the samples, instead of `shuffle`.
        tail: What happens if the ranks can't share the last batches evenly, because none can be halved: "keep" raises,
            "drop" leaves them out, "pad" repeats some.
        balance: What a sample costs by its length: `lk.AttentionCost(hidden_size=...)`, or a function from lengths (N,) to
            costs (N,). Then the batches of one step cost about the same on all ranks, and so do the ranks' sums over the steps of
            a gradient accumulation.

    Raises:
        ValueError: If a number is out of range, a sample is too long, or the order does not fit the lengths.

    Examples:
        >>> samples = [torch.ones(n) for n in (2, 2, 2, 6)]
        >>> plan = lk.TokenBudget([2, 2, 2, 6], max_tokens=6)
        >>> loader = lk.Loader(samples, plan=plan, collate_fn=lk.PadCollate())
        >>> sorted(tuple(batch.shape) for batch in loader)
        [(1, 6), (3, 2)]
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "ranks": RANKS,
        "max_tokens": SIZE,
        "max_samples": integers(0, 2**53),
        "multiple_of": SIZE,
        "padded": integers(0, 1),
        "too_long": integers(0, len(TOO_LONG) - 1),
        "tail": integers(0, len(TAILS) - 1),
    }

    def __init__(
        self,
        lengths: "npt.ArrayLike",
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
        balance: Cost | None = None,
    ) -> None:
        super().__init__(lengths, window=window, shuffle=shuffle, seed=seed, order=order, tail=tail, balance=balance)
        check_integer("TokenBudget", "max_tokens", max_tokens, 1)
        check_integer("TokenBudget", "max_samples", 1 if max_samples is None else max_samples, 1)
        check_integer("TokenBudget", "multiple_of", multiple_of, 1)
        check_choice("TokenBudget", "too_long", too_long, TOO_LONG)
        self.max_tokens, self.multiple_of = int(max_tokens), int(multiple_of)
        self.max_samples = None if max_samples is None else int(max_samples)
        self.padded, self.too_long = padded, too_long
        if too_long == "error":
            way_out = "or say what to do with such samples: too_long='drop' or 'alone'"
            check_longest(_costs(self.lengths, self.multiple_of), max_tokens, "TokenBudget", "max_tokens", way_out)

    @property
    def step(self) -> int:
        return self.world.size * self.max_tokens

    @property
    def geometry(self) -> Geometry:
        limits = self.world.size, self.max_tokens, self.max_samples or 0, self.multiple_of
        return *limits, int(self.padded), TOO_LONG.index(self.too_long), TAILS.index(self.tail)

    def remark(self) -> str | None:
        ranks = self.world.size
        batch = self.max_tokens / max(1.0, float(self.lengths.mean()))
        needed = ranks * (batch if self.max_samples is None else min(batch, self.max_samples))
        return small_window("TokenBudget", self.window, len(self.lengths), needed, ranks)

    def arrange(self, lengths: Int64Array, geometry: Geometry, *, last: bool) -> Arrangement | None:
        ranks, budget, most, multiple, padded, too_long, tail = geometry
        places = _by_length(lengths)[::-1]
        costs = _costs(lengths[places], multiple)
        if TOO_LONG[too_long] == "drop":
            fitting = int(np.searchsorted(-costs, -budget))
            places, costs = places[fitting:], costs[fitting:]
        most = most or len(places)
        ends = _fill_padded(costs, budget, most) if padded else _fill_real(costs, budget, most)
        bounds = _halved_to_multiple(ends, ranks)
        if bounds is None and not last:
            return None
        if bounds is None:
            bounds = np.array([0, *ends], dtype=np.int64)
            if ends and TAILS[tail] == "keep":
                raise too_few(len(places), ranks)
            if TAILS[tail] == "pad":
                return _padded_to_multiple(places, bounds, ranks)
            bounds = bounds[: len(ends) - len(ends) % ranks + 1]
        return Arrangement(places[: bounds[-1]], bounds)

    def tokens_of(self, lengths: Int64Array, arrangement: Arrangement) -> Int64Array:
        if not self.padded:  # the batches are not padded
            total = np.concatenate([[0], np.cumsum(lengths)])
            return np.diff(total[arrangement.bounds])
        return longest_times_count(-(-lengths // self.multiple_of) * self.multiple_of, arrangement.bounds)

    def costs_of(self, lengths: Int64Array, arrangement: Arrangement, cost: Cost, geometry: Geometry) -> Float64Array:
        multiple, padded = geometry[3:5]
        if not padded:
            return sums(costs_of(cost, lengths)[arrangement.places], arrangement.bounds)
        return super().costs_of(-(-lengths // multiple) * multiple, arrangement, cost, geometry)


def _costs(lengths: Int64Array, multiple: int) -> Int64Array:
    """Return the tokens that each sample counts: at least 1, so that a batch of empty samples has an end."""
    return np.maximum(-(-lengths // multiple) * multiple, 1)


def _by_length(lengths: Int64Array) -> Int64Array:
    """Return rows sorted by length; equal lengths keep their order."""
    if lengths.size and lengths.max() < 1 << 16:
        return np.argsort(lengths.astype(np.uint16), kind="stable")  # a radix sort: four times as fast
    return np.argsort(lengths, kind="stable")


def _halved_to_multiple(ends: list[int], ranks: int) -> Int64Array | None:
    """Halve the largest batches until their number is a multiple of `ranks`. Return the bounds; None if impossible."""
    bounds = np.array([0, *ends], dtype=np.int64)
    for _ in range(-len(ends) % ranks):
        sizes = np.diff(bounds)
        largest = int(np.argmax(sizes))
        if sizes[largest] < 2:
            return None
        bounds = np.insert(bounds, largest + 1, bounds[largest] + sizes[largest] // 2)
    return bounds if ends else None


def _padded_to_multiple(places: Int64Array, bounds: Int64Array, ranks: int) -> Arrangement:
    """Repeat batches from the start until their number is a multiple of `ranks`."""
    parts = [places]
    count = len(bounds) - 1
    for number in range(-count % ranks):
        first, last = bounds[number % count], bounds[number % count + 1]
        parts.append(places[first:last])
        bounds = np.append(bounds, bounds[-1] + last - first)
    return Arrangement(np.concatenate(parts), bounds)


def _steps(samples: int, geometry: Geometry, *, last: bool) -> int | None:
    """Return the number of steps of a window in buckets; None if the samples give no batch for each rank."""
    ranks, batch_size, tail = geometry
    full, rest = divmod(samples, ranks * batch_size)
    if last and TAILS[tail] == "drop":
        return full
    if rest == 0 or (last and TAILS[tail] == "pad"):
        return full + (rest > 0)
    steps = full + 1
    if samples >= steps * ranks:
        return steps
    return full or None  # with batch_size 1 the rest joins the other batches


def _fill_padded(costs: Int64Array, budget: int, most: int) -> list[int]:
    """Return the ends of batches over falling costs; each holds as many samples as the cost of its first one allows."""
    counts = np.clip(budget // costs, 1, most).tolist()
    ends, at = [], 0
    while at < len(counts):
        at = min(at + counts[at], len(counts))
        ends.append(at)
    return ends


def _fill_real(costs: Int64Array, budget: int, most: int) -> list[int]:
    """Return the ends of batches; each holds as many samples as the budget allows for the sum of their costs."""
    total = np.cumsum(costs).tolist()
    ends, at, before = [], 0, 0
    while at < len(total):
        at = min(max(bisect_right(total, before + budget, at), at + 1), at + most)
        before = total[at - 1]
        ends.append(at)
    return ends
