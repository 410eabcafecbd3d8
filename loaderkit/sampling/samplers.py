"""Orders that draw: by weight, or from a user's own sampler."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch.utils.data as torch_data

from loaderkit.sampling.order import Order, cached, check_size, digest
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.samples import SampleSeeds
from loaderkit.system.arrays import Int64Array

MOST_DRAWN = 1 << 22  # indices of a sampler that has no length, unless the data is large


class Weighted(Order):
    """Indices drawn in proportion to weights.

    With replacement each position is drawn independently. Without, samples of large weight come early (Efraimidis and
    Spirakis, Information Processing Letters 2006).

    Args:
        weights: Weight of each sample, at least 0, finite, not all 0 (N,).
        seed: Of the draw.
        size: Positions in an epoch; by default N, or without replacement the number of weights above 0.
        replacement: Whether an index may come more than once an epoch.

    Raises:
        ValueError: If the weights can't be drawn by, or `size` is out of range.

    Examples:
        >>> order = lk.Weighted([0, 1, 3], size=1000)
        >>> np.bincount(order.indices(0, 0, 1000))
        array([  0, 236, 764])
    """

    def __init__(
        self,
        weights: Sequence[float] | npt.NDArray[Any],
        *,
        seed: int = 0,
        size: int | None = None,
        replacement: bool = True,
    ) -> None:
        self._weights = np.asarray(weights, dtype=np.float64)
        found = self._weights
        if found.ndim != 1 or not found.size or not np.isfinite(found).all() or found.min() < 0:
            raise ValueError(
                f"Weighted: weights have shape {found.shape} and values from {found.min(initial=np.inf)} to "
                f"{found.max(initial=-np.inf)}, wanted one axis of finite numbers of at least 0, one for each sample."
            )
        usable = int(np.count_nonzero(found))
        if not usable:
            raise ValueError("Weighted: all weights are 0, wanted at least one above 0.")
        with np.errstate(over="ignore"):
            total = found.sum()
        if not np.finfo(np.float64).tiny <= total < np.inf:
            raise ValueError(
                f"Weighted: the weights have the sum {total:g}, wanted one that a float64 holds. Scale them, for example by their largest."
            )
        if size is None:
            size = found.size if replacement else usable
        check_size(size, "Weighted")
        if not replacement and size > usable:
            raise ValueError(
                f"Weighted: size is {size} without replacement, and {usable} samples have a weight above 0. "
                "Ask for fewer, or use replacement=True."
            )
        self._size = size
        self._seed = seed
        self._replacement = replacement
        self._epochs: dict[int, Any] = {}

    def size(self, epoch: int) -> int:
        return self._size

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        if not self._replacement:
            drawn: Int64Array = cached(self, epoch, lambda: self._draw_all(epoch))
            return np.take(drawn, positions)
        cumulative: npt.NDArray[np.float64] = cached(self, 0, lambda: np.cumsum(self._weights))
        points = _uniform(positions, "weighted", self._seed, epoch) * cumulative[-1]
        # side="right" skips weights of 0.
        found: Int64Array = np.searchsorted(cumulative, points, side="right").astype(np.int64)
        return found

    @property
    def reach(self) -> int:
        return len(self._weights)

    def key(self, epoch: int) -> str:
        shape = f"seed={self._seed}, size={self._size}, replacement={self._replacement}"
        return f"weighted-1({digest(self._weights)}, {shape})"

    def _draw_all(self, epoch: int) -> Int64Array:
        usable = np.flatnonzero(self._weights)
        waits = -np.log(_uniform(usable, "weighted", self._seed, epoch)) / self._weights[usable]
        drawn: Int64Array = usable[np.argsort(waits, kind="stable")]
        return drawn


def _uniform(positions: Int64Array, *keys: int | str) -> npt.NDArray[np.float64]:
    """Return numbers in the open interval (0, 1), one for each position."""
    return ((hash_positions(positions, *keys) >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


class SamplerOrder(Order):
    """A user's own sampler: any iterable of indices.

    The order draws a whole epoch from the sampler at its start, after `sampler.set_epoch` if it has that method, with
    the global generators seeded from (seed, epoch). The state holds a digest of the epoch's indices. If the sampler draws
    from a generator of its own, a resume is therefore refused, not wrong.

    A sampler without an end is an error: a plan needs the size of its epochs. If the sampler has a length, that is the most
    it may give; it may give fewer. Without a length the limit is `most`.

    Args:
        sampler: Yields indices.
        seed: Of the global generators while it draws.
        most: Indices in an epoch of a sampler without a length.

    Raises:
        ValueError: If the sampler gives each rank its part; the Loader does that.
    """

    def __init__(self, sampler: Iterable[Any], *, seed: int = 0, most: int = MOST_DRAWN) -> None:
        if isinstance(sampler, torch_data.DistributedSampler) and sampler.num_replicas > 1:
            raise ValueError(
                f"order: {type(sampler).__name__} divides the samples over {sampler.num_replicas} ranks, and so does the Loader. "
                "Leave the sampler out: use shuffle=True; world= sets the ranks."
            )
        self._sampler = sampler
        self._seed = seed
        self._most = most
        self._epochs: dict[int, Any] = {}

    def size(self, epoch: int) -> int:
        return len(self._drawn(epoch))

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        return np.take(self._drawn(epoch), positions)

    def key(self, epoch: int) -> str:
        return f"sampler-1({type(self._sampler).__name__}, {digest(self._drawn(epoch))})"

    def is_repeatable(self, epoch: int) -> bool:
        """Draw the epoch again and return whether it is the same."""
        return bool(np.array_equal(self._drawn(epoch), self._draw(epoch)))

    @property
    def reach(self) -> int:
        drawn = self._drawn(0)
        return int(drawn.max()) + 1 if drawn.size else 0

    def _drawn(self, epoch: int) -> Int64Array:
        drawn: Int64Array = cached(self, epoch, lambda: self._draw(epoch))
        return drawn

    def _draw(self, epoch: int) -> Int64Array:
        indices = up_to(draw_from(self._sampler, self._seed, epoch), self._sampler, self._most)
        first = next(indices, None)
        if first is not None and not isinstance(first, SupportsIndex):
            raise TypeError(
                f"loader: the order gives {first!r}, wanted integers, the samples' indices. Give a sampler of batches as "
                "batch_sampler=, and a plan of your own as plan=."
            )
        return np.fromiter(indices if first is None else itertools.chain([first], indices), dtype=np.int64)


def draw_from(sampler: Iterable[Any], seed: int, epoch: int) -> Iterator[Any]:
    """Yield what a sampler gives in an epoch, with the global generators seeded from (seed, epoch)."""
    set_epoch = getattr(sampler, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
    with SampleSeeds(hash_positions(np.zeros(1, dtype=np.int64), "sampler", seed, epoch)) as seeds:
        seeds.enter(0)
        yield from sampler


def up_to(drawn: Iterator[Any], sampler: Any, most: int, what: str = "indices") -> Iterator[Any]:
    """Yield what a sampler gives, at most its length, or without one at most `most`.

    Raises:
        ValueError: If it gives more.
    """
    try:
        length = len(sampler)
    except (TypeError, NotImplementedError):  # torch's Sampler suggests both for one without a length
        length = None
    limit = most if length is None else length
    for number, value in enumerate(drawn):
        if number == limit:
            name = type(sampler).__name__
            found = (
                f"has no length and gives more than {limit:,} {what}"
                if length is None
                else f"has the length {limit:,} and gives more"
            )
            raise ValueError(
                f"loader: {name} {found}, wanted an end: an epoch has a size. For an epoch of n samples, yield n and give the "
                "sampler a __len__ that says so. For endless data, write an IterableDataset and give steps=; for random "
                "draws, use lk.Weighted(weights, size=n)."
            )
        yield value


def as_order(order: Any, *, seed: int, size: int = 0) -> Order:
    """Return an Order as it is, or a user's sampler as an order.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(order, Order):
        return order
    if hasattr(order, "__iter__"):
        return SamplerOrder(order, seed=seed, most=max(MOST_DRAWN, 4 * size))
    raise TypeError(f"loader: order is {type(order).__name__}, wanted a loaderkit order or a sampler (an iterable).")
