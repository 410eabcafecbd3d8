"""An order over several sources, mixed by weights."""

from collections.abc import Sequence, Sized

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.order import Order
from loaderkit.sampling.sources import Sources, shuffled_source, split_window, spread
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer, check_ordered, plain_integer
from loaderkit.system.digests import shortened

_SHOWN = 4  # sources in a repr


class Mixture(Order):
    """Several sources mixed by weights, for a dataset that is their concatenation.

    Each `window` positions of an epoch give each source its share, exact to one sample, spread evenly. Any stretch of
    positions within whole windows has each source's part to within 2 - 1 / (S - 1) samples for S sources. A source that
    is used up starts its next pass. An epoch continues each source where the previous epoch left it.

    Args:
        sources: The datasets, or their sizes, or Orders that each read a whole dataset. Datasets and sizes are
            shuffled, datasets with shards by a ShardOrder.
        weights: One for each source, above 0; they need not sum to 1 (S,).
        seed: The seed of the shuffle of sources that are not given as orders.
        size: Positions in an epoch; by default the sum of the sources' sizes.
        window: Positions over which the shares are exact.

    Raises:
        ValueError: If a weight is missing or not above 0, a source is empty, or its share of a window is below one sample.
            Also if an Order is for another number of samples than its dataset has.

    Examples:
        >>> web, books = list(range(60)), list(range(100, 140))
        >>> order = lk.Mixture([web, books], [3, 1], size=8, window=8)
        >>> [sum(sample >= 100 for sample in batch) for batch in lk.Loader(web + books, 4, order=order)]
        [tensor(1), tensor(1)]
    """

    def __init__(
        self,
        sources: Sequence[Order | int | Sized],
        weights: Sequence[float],
        *,
        seed: int = 0,
        size: int | None = None,
        window: int = 1000,
    ) -> None:
        check_ordered("Mixture", "sources", sources)
        self._orders = [shuffled_source(source, seed + row) for row, source in enumerate(sources)]
        self._sizes = [order.size(0) for order in self._orders]
        self._sources = Sources(self._orders, self._sizes)
        found = np.asarray(weights, dtype=np.float64)
        if found.shape != (len(self._orders),) or not found.size or not np.isfinite(found).all() or found.min() <= 0:
            raise ValueError(
                f"Mixture: {len(self._orders)} sources and weights {weights!r}, wanted one weight above 0 for each."
            )
        if not all(self._sizes):
            raise ValueError(f"Mixture: the sources have sizes {self._sizes}, wanted at least one sample in each.")
        for row, order in enumerate(self._orders):
            if order.reach != order.size(0):  # the next source's indices would begin at a wrong place
                raise ValueError(
                    f"Mixture: source {row} is an order of {order.size(0):,} samples with indices below {order.reach:,}, wanted as "
                    "many samples as its dataset has. Give a dataset of these samples, such as lk.SubsetDataset(dataset, indices)."
                )
        self._weights = found / found.sum()
        self._size = sum(self._sizes) if size is None else plain_integer(size)
        check_integer("Mixture", "size", self._size, 0)
        window = plain_integer(window)
        if window < 1 or split_window(self._weights, window).min() < 1:
            raise ValueError(
                f"Mixture: in a window of {window} positions a source with weight {found.min():g} of {found.sum():g} "
                "gets no sample. Use a larger window."
            )
        self._window = window
        self._epochs: dict[int, tuple[Int64Array, Int64Array]] = {}

    def _details(self) -> str:
        parts = [f"{w:.3g} of {n:,}" for w, n in zip(self._weights[:_SHOWN], self._sizes, strict=False)]
        more = f" and {len(self._sizes) - _SHOWN:,} more" if len(self._sizes) > _SHOWN else ""
        return f" of {len(self._sizes):,} source{'s' * (len(self._sizes) != 1)} ({', '.join(parts)}{more})"

    def size(self, epoch: int) -> int:
        return self._size

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        return self._sources.at(*self._dealt(epoch, positions))

    @property
    def reach(self) -> int:
        return sum(self._sizes)

    def key(self, epoch: int) -> str:
        text = ", ".join(f"{w:.9g} of {o.key(0)}" for w, o in zip(self._weights, self._orders, strict=True))
        return f"mixture-2({shortened(text)}, size={self._size}, window={self._window})"

    def source_epochs(self, epoch: int, samples: int) -> npt.NDArray[np.float64]:
        """Return the passes over each source (S,) after `samples` samples of an epoch; 2.5 is half of the third pass."""
        number, rest = divmod(samples, self._window)
        whole, _ = divmod(self._size, self._window)
        source, _ = self._pattern(self._window if number < whole else self._size % self._window)
        counts = epoch * self._in_epoch() + number * split_window(self._weights, self._window)
        counts += np.bincount(source[:rest], minlength=len(self._sizes)).astype(np.int64)
        return counts / np.array(self._sizes, dtype=np.float64)

    def _in_epoch(self) -> Int64Array:
        """Return how many samples of each source (S,) an epoch has."""
        whole, rest = divmod(self._size, self._window)
        return whole * split_window(self._weights, self._window) + split_window(self._weights, rest)

    def _dealt(self, epoch: int, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the source (N,) of each position, and how many samples of that source come before it (N,)."""
        whole, rest = divmod(self._size, self._window)
        windows: Int64Array = positions // self._window
        slots = positions - windows * self._window
        pattern, before = self._pattern(self._window)
        source, count = pattern[slots], before[slots]
        late = np.flatnonzero(windows >= whole)
        if late.size:
            pattern, before = self._pattern(rest)
            source[late], count[late] = pattern[slots[late]], before[slots[late]]
        count += epoch * self._in_epoch()[source] + windows * split_window(self._weights, self._window)[source]
        return source, count

    def _pattern(self, window: int) -> tuple[Int64Array, Int64Array]:
        """Return the source (W,) of each place in a window, and how many earlier places have the same source (W,)."""
        if window not in self._epochs:
            self._epochs[window] = spread(split_window(self._weights, window))
        return self._epochs[window]
