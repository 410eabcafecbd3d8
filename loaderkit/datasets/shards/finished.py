"""Close the shards that the next steps of an epoch do not read, so that the cache may evict them."""

import numpy as np

from loaderkit.datasets.combine import MapDataset
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.sampling.order import Order
from loaderkit.system.arrays import Int64Array

_SLOWEST = 8  # steps by which the slowest process of the host may lag


class FinishedShards:
    """Closes the shards of a dataset that an order has read, and those that it reads only later.

    Args:
        data: The dataset.
        order: In which its samples are read.
        step: Positions that all ranks together take at a time.
    """

    def __init__(self, data: ShardedDataset, order: Order, step: int) -> None:
        self._data, self._order, self._behind = data, order, _SLOWEST * step
        self._epoch = -1
        self._spans: tuple[Int64Array, Int64Array] | None = None

    def close(self, epoch: int, position: int) -> None:
        """Close the shards of this thread that no process of the host reads near a position."""
        if epoch != self._epoch:
            self._epoch, self._spans = epoch, self._order.spans(epoch, self._data.ends)
        if self._spans is not None:
            firsts, lasts = self._spans
            unused = (lasts < position - self._behind) | (firsts > position + self._behind)
            self._data.close_shards(np.flatnonzero(unused).tolist())


def finished_shards(dataset: object, order: object, step: int) -> FinishedShards | None:
    """Return what closes a dataset's shards; None if the cache has room for all of them, or there are none."""
    while isinstance(dataset, MapDataset):
        dataset = dataset.dataset
    if not isinstance(dataset, ShardedDataset) or not isinstance(order, Order) or order.reach != len(dataset):
        return None
    cache = dataset.storage
    is_small = cache.cache_dir is not None and cache.cache_bytes < dataset.remote_bytes
    return FinishedShards(dataset, order, step) if is_small else None
