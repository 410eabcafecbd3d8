"""Close the shards that the next steps of an epoch do not read, so that the cache may evict them."""

import numpy as np

from loaderkit.datasets.combine import MapDataset
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.sampling.order import Order
from loaderkit.system.arrays import Int64Array

_SLOWEST = 8  # steps by which the processes of a host may be apart


class FinishedShards:
    """Closes those open shards of a dataset that are not read near the current position of an order.

    Args:
        data: The dataset.
        order: The order in which its samples are read.
        step: Number of positions in one step of all ranks together.
    """

    def __init__(self, data: ShardedDataset, order: Order, step: int) -> None:
        self._data, self._order, self._behind = data, order, _SLOWEST * step
        self._epoch = -1
        self._spans: tuple[Int64Array, Int64Array] | None = None

    def close(self, epoch: int, position: int) -> None:
        """Close this thread's open shards that no process of the host reads near a position."""
        if epoch != self._epoch:
            self._epoch, self._spans = epoch, self._order.spans(epoch, self._data.indexes.ends)
        if self._spans is not None:
            firsts, lasts = self._spans
            unused = (lasts < position - self._behind) | (firsts > position + self._behind)
            self._data.opened.close_some(np.flatnonzero(unused).tolist())


def finished_shards(dataset: object, order: object, step: int) -> FinishedShards | None:
    """Return the `FinishedShards` of a dataset. Return None if its remote shards fit into the cache, or it has none."""
    while isinstance(dataset, MapDataset):
        dataset = dataset.dataset
    if not isinstance(dataset, ShardedDataset) or not isinstance(order, Order) or order.reach != len(dataset):
        return None
    cache = dataset.storage
    is_small = cache.cache_dir is not None and cache.cache_bytes < dataset.files.remote_bytes
    return FinishedShards(dataset, order, step) if is_small else None
