"""Orders that draw: by weight, or from a user's own sampler."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.utils.data as torch_data

from loaderkit.sampling.keys import Keys, digest_of, drawn_keys
from loaderkit.sampling.order import Order, cached
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer, check_ordered, plain_integer
from loaderkit.system.digests import digest
from loaderkit.system.types import Array

ENDLESS = 1 << 62  # the size of an epoch without an end
_MOST = 1 << 16  # indices of a sampler without a length that are drawn at the epoch's start, unless the data is large
_PART = 1 << 16  # indices of an endless epoch that are drawn at a time
_KEPT = 1 << 18  # indices of an endless epoch that are kept before those in use


class Weighted(Order):
    """Indices drawn in proportion to weights.

    With replacement each position is drawn independently. Without, samples of large weight come early (Efraimidis and
    Spirakis, Information Processing Letters 2006).

    Args:
        weights: Weight of each sample, at least 0, finite, not all 0 (N,).
        seed: The seed of the draw.
        size: Positions in an epoch; by default N, or without replacement the number of weights above 0.
        replacement: Whether an index may come more than once an epoch.

    Raises:
        ValueError: If a weight is negative or not finite, all are 0, their sum overflows, or `size` is out of range.

    Examples:
        >>> order = lk.Weighted([0, 1, 3], size=1000)
        >>> np.bincount(order.indices(0, 0, 1000))
        array([  0, 236, 764])
    """

    def __init__(
        self,
        weights: Sequence[float] | Array,
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
        size = plain_integer(size)
        check_integer("Weighted", "size", size, 0)
        if not replacement and size > usable:
            raise ValueError(
                f"Weighted: size is {size} without replacement, and {usable} samples have a weight above 0. "
                "Ask for fewer, or use replacement=True."
            )
        self._size = size
        self._seed = seed
        self._replacement = replacement
        self._epochs: dict[int, object] = {}

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
    """A user's own sampler: any iterable of indices, or of keys of another kind, which the dataset takes in their place.

    At the start of an epoch, the order seeds the global generators from (seed, epoch) and draws the whole epoch from the
    sampler. It calls `sampler.set_epoch` first, if there is one. The state holds a digest of the epoch's indices or keys. If the
    sampler draws from a generator of its own, a resume is therefore refused, not wrong.

    If the sampler has a length, that is the most it may give; it may give fewer. A sampler without a length that gives
    more than `most` indices is taken to be endless. Its epoch has no end. The order then draws as far as positions are
    asked for, and keeps the last indices. A resume draws the indices before its position again, without reading data. The
    state holds a digest of the first `most` indices.

    Args:
        sampler: Yields indices or keys.
        seed: Seeds the global generators while the sampler draws.
        most: Indices of a sampler without a length that are drawn at the epoch's start.

    Raises:
        ValueError: If the sampler splits the samples over the ranks, which the Loader does itself.
    """

    def __init__(self, sampler: Iterable[object], *, seed: int = 0, most: int = _MOST) -> None:
        if isinstance(sampler, torch_data.DistributedSampler) and sampler.num_replicas > 1:
            raise ValueError(
                f"order: {type(sampler).__name__} divides the samples over {sampler.num_replicas} ranks, and so does the Loader. "
                "Leave the sampler out: use shuffle=True; world= sets the ranks."
            )
        self._sampler = sampler
        self._seed = seed
        self._most = most
        self._epochs: dict[int, object] = {}
        self._digested: tuple[Keys | None, str] = None, ""  # keys, and their digest

    def __repr__(self) -> str:
        return f"{type(self).__name__} of a {type(self._sampler).__name__}"  # its size would draw from the sampler

    def size(self, epoch: int) -> int:
        return ENDLESS if self.is_endless(epoch) else len(self._drawn(epoch))

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        drawn = self._epoch(epoch)
        return drawn.at(positions) if isinstance(drawn, _Endless) else np.take(drawn, positions)

    def key(self, epoch: int) -> str:
        return f"sampler-1({self.name}, {self._digest(epoch)})"

    def is_repeatable(self, epoch: int) -> bool:
        """Draw the epoch's start again and return whether it is the same."""
        drawn = self._draw(epoch)
        again = drawn.head if isinstance(drawn, _Endless) else drawn
        first = self._drawn(epoch)
        return np.array_equal(first, again) if first.dtype != object else self._digest(epoch) == digest_of(again)

    def is_endless(self, epoch: int) -> bool:
        """Return whether the epoch has no end."""
        return isinstance(self._epoch(epoch), _Endless)

    @property
    def name(self) -> str:
        """Name of the sampler's class."""
        return type(self._sampler).__name__

    @property
    def reach(self) -> int:
        drawn = self._drawn(0)
        return int(drawn.max()) + 1 if drawn.size and drawn.dtype != object else 0

    def _digest(self, epoch: int) -> str:
        """Return a digest of the epoch's indices or keys; of an endless epoch, of the first ones."""
        drawn = self._drawn(epoch)
        if drawn.dtype != object:
            return digest(drawn)
        if self._digested[0] is not drawn:  # kept, because a digest pickles all keys
            self._digested = drawn, digest_of(drawn)
        return self._digested[1]

    def _drawn(self, epoch: int) -> Keys:
        """Return the epoch's indices or keys (N,), or the first ones of an endless epoch."""
        drawn = self._epoch(epoch)
        return drawn.head if isinstance(drawn, _Endless) else drawn

    def _epoch(self, epoch: int) -> "Keys | _Endless":
        drawn: Keys | _Endless = cached(self, epoch, lambda: self._draw(epoch))
        return drawn

    def _draw(self, epoch: int) -> "Keys | _Endless":
        drawing = Drawing(self._sampler, self._seed, epoch)
        drawn = drawn_keys(drawing.epoch(self._most))
        if drawing.length is None and len(drawn) > self._most:
            return _Endless(drawn, lambda: Drawing(self._sampler, self._seed, epoch), drawing)
        return drawn

    def __getstate__(self) -> dict[str, object]:
        kept = {epoch: drawn for epoch, drawn in self._epochs.items() if not isinstance(drawn, _Endless)}
        return self.__dict__ | {"_epochs": kept, "_digested": (None, "")}


class Drawing:
    """What a sampler gives in one epoch, drawn in parts, with the global generators seeded from (seed, epoch).

    Between the parts, the global generators have the caller's state.
    """

    def __init__(self, sampler: Iterable[object], seed: int, epoch: int) -> None:
        self._sampler, self._epoch = sampler, epoch
        self._seeds = SampleSeeds(hash_positions(np.zeros(1, dtype=np.int64), "sampler", seed, epoch))
        self._values: Iterator[object] | None = None
        self._reached: tuple[object, ...] = ()
        self.length = _length(sampler)
        self.name = type(sampler).__name__

    def take(self, count: int) -> list[object]:
        """Return the next `count` values; fewer at the epoch's end."""
        with self._seeds:
            if self._values is None:
                set_epoch = getattr(self._sampler, "set_epoch", None)
                if callable(set_epoch):
                    set_epoch(self._epoch)
                self._seeds.enter(0)
                self._values = iter(self._sampler)
            else:
                self._seeds.resume(self._reached)
            values = list(itertools.islice(self._values, count))
            self._reached = self._seeds.pause()
        return values

    def epoch(self, most: int) -> list[object]:
        """Return all values of the epoch, at most the sampler's length; `most` + 1 if it has no length and gives more.

        Raises:
            ValueError: If it gives more than its length.
        """
        if self.length is None:
            return self.take(most + 1)
        values = self.take(self.length + 1)
        if len(values) > self.length:
            raise ValueError(
                f"loader: {self.name} has the length {self.length:,} and gives more. Let __len__ return "
                "what an epoch gives. A sampler without an end has no __len__."
            )
        return values


class _Endless:
    """The indices of an epoch without an end: the first ones, and those that were drawn last.

    Args:
        head: The first indices (N,).
        begin: Starts to draw the epoch again.
        drawing: Continues after the head.
    """

    def __init__(self, head: Keys, begin: Callable[[], Drawing], drawing: Drawing) -> None:
        self.head, self._begin, self._drawing = head, begin, drawing
        self._recent, self._start = head, 0  # the indices that were drawn last, and the position of the first of them
        self._lock = threading.Lock()  # threads that read look up replacements of bad samples

    def at(self, positions: Int64Array) -> Keys:
        """Return the indices or keys (N,) at positions (N,); draw up to the last one."""
        if not positions.size:
            return positions
        first, last = int(positions.min()), int(positions.max())
        with self._lock:
            if first < self._start:
                self._drawing = self._begin()
                self._recent, self._start = self.head[:0], 0
            while self._start + len(self._recent) <= last:
                self._draw(min(first, self._start + len(self._recent)))
            return np.take(self._recent, positions - self._start)

    def _draw(self, first: int) -> None:
        """Draw the next part. Keep indices from position `first` on, and at least the last `_KEPT` before the part."""
        drawn = drawn_keys(self._drawing.take(_PART))
        end = self._start + len(self._recent)
        if len(drawn) < _PART:
            raise RuntimeError(
                f"loader: {self._drawing.name} has no length, gave more than {len(self.head) - 1:,} indices, and ended after "
                f"{end + len(drawn):,}. Give it a __len__, so that the Loader knows the size of an epoch."
            )
        keep = max(0, min(first - self._start, len(self._recent) - _KEPT))
        self._recent, self._start = np.concatenate((self._recent[keep:], drawn)), self._start + keep


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except Exception:
        # A sampler without a length raises TypeError, NotImplementedError or ValueError; DataLoader needs no length.
        return None


def as_order(order: object, *, seed: int, size: int = 0) -> Order:
    """Return an Order as it is, or a user's sampler as an order.

    Raises:
        TypeError: If it is neither.
        ValueError: If it is a set.
    """
    if isinstance(order, Order):
        return order
    check_ordered("loader", "order", order)
    if hasattr(order, "__iter__") and not isinstance(order, str | bytes):
        return SamplerOrder(order, seed=seed, most=max(_MOST, 4 * size))
    raise TypeError(f"loader: order is {type(order).__name__}, wanted a loaderkit order or a sampler (an iterable).")
