"""Download the remote shards that an epoch reads next, and close those that it has read, so that the cache may evict them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.utils.data as torch_data

from loaderkit.datasets.combine import MapDataset
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.sampling.order import Order
from loaderkit.system.arrays import Int64Array
from loaderkit.system.worker_info import in_worker_process
from loaderkit.system.world import World

_SLOWEST = 8  # steps by which the processes of a host may be apart
_AHEAD_BYTES = 1 << 28  # of the next shards, for all processes of a host together


@dataclass(slots=True)
class _Epoch:
    """An epoch's shards: the first and last position of each (S,), and how far this process has come."""

    number: int
    firsts: Int64Array
    lasts: Int64Array
    sizes: Int64Array  # bytes
    parts: Int64Array  # in the order in which they are first read
    position: int = 0
    begun: int = 0  # number of `parts` whose downloads have begun, in this process or another


class EpochShards:
    """Downloads the next shards of a dataset, and closes those that were read, along an order.

    The processes of a host share the cache. So each downloads its part of the next shards: every second one if there
    are two processes.

    Args:
        data: The dataset.
        order: The order in which its samples are read.
        step: Number of positions in one step of all ranks together.
        world: The ranks.
    """

    def __init__(self, data: ShardedDataset, order: Order, step: int, world: World) -> None:
        self._data, self._order, self._behind, self._world = data, order, _SLOWEST * step, world
        self._closes = data.storage.cache_bytes < data.files.remote_bytes
        self._fetches = 1 in (world.size, world.nodes)  # else this host reads a part of the shards, which is not known
        self._epoch: _Epoch | None = None

    def close_finished(self, epoch: int, position: int) -> None:
        """Close this thread's shards that no process of the host reads near a position, and downloads it never opened."""
        if (found := self._at(epoch, position)) is None:
            return
        before, after = position - self._behind, position + self._behind
        opened, lasts = self._data.opened, found.lasts
        opened.close_some([~part for part in opened.fetched if lasts[part] < before])
        if self._closes:
            opened.close_some(np.flatnonzero((lasts < before) | (found.firsts > after)).tolist())

    def fetch_next(self, epoch: int, position: int) -> None:
        """Begin to download the shards that are read after a position, as far as the cache has room for them."""
        if not self._fetches or (found := self._at(epoch, position)) is None or found.begun == len(found.parts):
            return
        number, processes = self._place()
        is_used = (found.firsts <= position) & (found.lasts >= position - self._behind)
        most = (self._data.storage.cache_bytes - int(found.sizes[is_used].sum())) // 2
        reached = int(np.searchsorted(found.firsts[found.parts], position, side="right"))
        ahead = -int(found.sizes[found.parts[found.begun : reached]].sum())
        ahead += int(found.sizes[found.parts[reached : found.begun]].sum())
        room, begun = self._data.opened.can_fetch, list[int]()
        while found.begun < len(found.parts) and len(begun) < room:
            part = int(found.parts[found.begun])
            ahead += int(found.sizes[part])
            if ahead > most or (ahead > _AHEAD_BYTES and found.begun > reached):
                break
            if found.begun % processes == number and found.lasts[part] >= position:
                begun.append(part)
            found.begun += 1
        self._data.fetch(begun)

    def _at(self, epoch: int, position: int) -> _Epoch | None:
        """Return the epoch's shards; None if the order does not know where it reads them."""
        found = self._epoch
        if found is None or found.number != epoch or position < found.position - self._behind:  # a jump back
            spans = self._order.spans(epoch, self._data.indexes.ends)
            if spans is None:
                return None
            remote = self._data.files.remote
            each = np.array([remote[shard].size_bytes if shard in remote else 0 for shard in self._data.shards])
            self._epoch = found = _Epoch(epoch, *spans, each, np.argsort(spans[0], kind="stable"))
        found.position = max(found.position, position)
        return found

    def _place(self) -> tuple[int, int]:
        """Return the number of this process among those of the host that read, and their count."""
        info: Any = torch_data.get_worker_info() if in_worker_process() else None
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return self._world.rank * workers + number, self._world.size * workers

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_epoch": None}


def epoch_shards(dataset: object, order: object, step: int, world: World) -> EpochShards | None:
    """Return the `EpochShards` of a dataset; None if it has no remote shards, or they are not cached."""
    while isinstance(dataset, MapDataset):
        dataset = dataset.dataset
    if not isinstance(dataset, ShardedDataset) or not isinstance(order, Order) or order.reach != len(dataset):
        return None
    is_cached = dataset.files.remote and dataset.storage.cache_dir is not None
    return EpochShards(dataset, order, step, world) if is_cached else None
