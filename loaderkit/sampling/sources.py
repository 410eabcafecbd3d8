"""Sources that are read pass after pass, and how the places of a window are dealt to them."""

from collections.abc import Sequence, Sized
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.order import Order, Shuffled, indices_at
from loaderkit.sampling.shard_order import ShardOrder
from loaderkit.system.arrays import Int64Array
from loaderkit.system.overrides import own_attribute


class Sources:
    """Datasets joined end to end. Each is read in its own order, pass after pass without end.

    Args:
        orders: The order of each source.
        lengths: Samples of each source.
    """

    def __init__(self, orders: Sequence[Order], lengths: Sequence[int]) -> None:
        self.orders = list(orders)
        self.sizes = [int(order.size(0)) for order in orders]  # samples in a pass
        self.starts = list(accumulate(lengths, initial=0))
        self.reach = self.starts[-1]

    def at(self, source: Int64Array, count: Int64Array) -> Int64Array:
        """Return dataset indices (N,).

        Entry i is sample number `count[i]` of source `source[i]`. Numbers go on through all passes of the source.
        """
        result = np.empty_like(count)
        for row, order in enumerate(self.orders):
            mine = np.flatnonzero(source == row)
            passes, inside = np.divmod(count[mine], self.sizes[row])
            for number in np.unique(passes).tolist():
                now = passes == number
                result[mine[now]] = self.starts[row] + indices_at(order, number, inside[now])
        return result


def shuffled_source(source: Order | int | Sized, seed: int) -> Order:
    """Return an order as it is. For a dataset or its size, return a shuffle: by shards if the dataset has them."""
    if isinstance(source, Order):
        return source
    if isinstance(source, Sized):
        sizes = own_attribute(source, "shard_sizes")
        return Shuffled(len(source), seed=seed) if sizes is None else ShardOrder(sizes, seed=seed)
    return Shuffled(source, seed=seed)


def split_window(shares: npt.NDArray[np.float64], window: int) -> Int64Array:
    """Split `window` places in proportion to shares (S,) that sum to 1, by largest remainder."""
    exact = shares * window
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: window - int(counts.sum())]] += 1
    return counts


def spread(counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the source (W,) of each place in a window, and how many earlier places have the same source (W,).

    Each source has `counts` (S,) places, spread as evenly as possible (Tijdeman, "The chairman assignment problem", 1980):
    after n places each of S sources has its part of n, to within 1 - 1 / (2 S - 2).
    """
    sources, window = np.flatnonzero(counts).tolist(), int(counts.sum())
    shares = counts[sources].tolist()
    rates = [share / max(1, window) for share in shares]
    slack = 1 / (2 * len(sources) - 2) if len(sources) > 1 else 0.0
    had = [0] * len(sources)
    pattern, before = np.empty(window, dtype=np.int64), np.empty(window, dtype=np.int64)
    for place in range(window):
        chosen, soonest = 0, float("inf")
        for row, rate in enumerate(rates):
            owed = rate * (place + 1) - had[row]
            if owed >= slack - 1e-9 and had[row] < shares[row] and (due := (1 - slack - owed) / rate) < soonest:
                chosen, soonest = row, due
        pattern[place], before[place] = sources[chosen], had[chosen]
        had[chosen] += 1
    return pattern, before
