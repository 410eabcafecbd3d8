"""What a loader's remote data has downloaded, as the main process sees it."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np

from loaderkit.datasets.shards.sharded import ShardedDataset, shards_within
from loaderkit.files.storage import Storage
from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import Plan
from loaderkit.sampling.samplers import SamplerOrder
from loaderkit.sampling.shard_order import ShardOrder

_WINDOW_S = 10.0  # over which the rate is measured
_AT_LEAST_S = 1.0  # between two looks at the order and the cache
_LOOKED_AHEAD = 1024  # batches whose shards are looked up in the cache
_ONE, _MANY = ("storage", "read", "dataset"), ("datasets", "streams")  # attributes that hold what data is made from


@dataclass(frozen=True, kw_only=True, slots=True)
class Downloads:
    """What one rank has downloaded, and how far its cache is ahead.

    It counts remote shards only, and includes what the rank's workers download.

    Args:
        size_bytes: Bytes downloaded so far.
        bytes_per_s: The mean rate of about the last 10 s, or since the previous call if that is longer ago.
        opened: How often a shard was opened to read it, if there is a cache.
        hits: How often the cache had the whole shard then.
        shards_ahead: Shards in the cache that come after those of the next batch, up to the first one that is not in
            the cache. None without a cache, and for data whose order is not known ahead.

    Examples:
        >>> found = lk.Downloads(size_bytes=12_000_000, bytes_per_s=4e6, opened=10, hits=7, shards_ahead=2)
        >>> print(found)
        4.0 MB/s (12 MB so far), 70% of 10 openings from the cache, 2 shards ahead
        >>> lk.Loader(range(8), 4).downloads is None
        True
    """

    size_bytes: int
    bytes_per_s: float
    opened: int = 0
    hits: int = 0
    shards_ahead: int | None = None

    @property
    def hit_rate(self) -> float | None:
        """The share of openings that found the whole shard in the cache; None before the first."""
        return self.hits / self.opened if self.opened else None

    def __str__(self) -> str:
        said = f"{_size(self.bytes_per_s, 1)}/s ({_size(self.size_bytes, 0)} so far)"
        if self.opened:
            said += f", {self.hit_rate:.0%} of {self.opened:,} openings from the cache"
        if self.shards_ahead is not None:
            said += f", {self.shards_ahead} shard{'s' * (self.shards_ahead != 1)} ahead"
        return said


def _size(count: float, digits: int) -> str:
    """Return a number of bytes as a text in MB, or in KB below 1 MB."""
    return f"{count / 1e6:,.{digits}f} MB" if count >= 1e6 or not count else f"{count / 1e3:,.{digits}f} KB"


class DownloadMeter:
    """Reads the counts of a dataset's storages, and computes the download rate between calls of `look`."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._storages = storages_within(dataset)
        self._looks: deque[tuple[float, int]] = deque()  # time, bytes
        self._ahead: tuple[float, int | None] = 0.0, None  # time, shards

    def start(self) -> None:
        """Start to measure the rate. Workers that start after the first call share the counts."""
        self._looks.clear()
        if self._storages:
            self._looks.append((time.monotonic(), self._counts()["bytes"]))

    def look(self, shards_ahead: Callable[[], int | None]) -> Downloads | None:
        """Return what was downloaded; None if nothing was."""
        if not self._storages or not any((found := self._counts()).values()):
            return None
        now_s, size = time.monotonic(), found["bytes"]
        while len(self._looks) > 1 and now_s - self._looks[1][0] >= _WINDOW_S:
            self._looks.popleft()
        since_s, before = self._looks[0] if self._looks else (now_s, size)
        if not self._looks or now_s - self._looks[-1][0] >= _AT_LEAST_S:
            self._looks.append((now_s, size))
        if now_s - self._ahead[0] >= _AT_LEAST_S:
            self._ahead = now_s, shards_ahead()
        rate = (size - before) / max(1e-3, now_s - since_s)
        return Downloads(
            size_bytes=size, bytes_per_s=rate, opened=found["opened"], hits=found["hits"], shards_ahead=self._ahead[1]
        )

    def _counts(self) -> dict[str, int]:
        all_counts = [storage.counts.read() for storage in self._storages]
        return {name: sum(counts[name] for counts in all_counts) for name in all_counts[0]}

    def __reduce__(self) -> tuple[object, ...]:
        return DownloadMeter, (self._dataset,)  # a copy measures for itself


def storages_within(data: object) -> list[Storage]:
    """Return the storages of the remote datasets and streams that some data is made from, each once."""
    found: list[Storage] = []
    seen: set[int] = set()
    waiting = [data]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or (isinstance(part, ShardedDataset) and not part.files.remote):
            continue
        seen.add(id(part))
        if isinstance(part, Storage):
            found.append(part)
            continue
        if isinstance(part, ShardedDataset):
            waiting.append(part.storage)
        kept = getattr(part, "__dict__", {})
        waiting += [kept[name] for name in _ONE if name in kept]
        waiting += [inner for name in _MANY if isinstance(kept.get(name), list) for inner in kept[name]]
    return found


def shards_ahead(data: object, plan: Plan, cursor: Cursor) -> int | None:
    """Count the shards that come after the next batch's and are in the cache, up to the first that is not.

    Return None if that is unknown.
    """
    if not isinstance(data, ShardedDataset) or not data.files.remote or data.storage.cache_dir is None:
        return None
    if not plan.follows_order or isinstance(plan.order, SamplerOrder):
        return None  # to look ahead would draw from the user's sampler, or arrange a window
    keys = islice(plan.keys(cursor), _LOOKED_AHEAD)
    first = next(keys, None)
    if first is None:
        return 0
    now = set(data.indexes.parts_of(first.indices).tolist())
    later = data.indexes.parts_of(np.concatenate([first.indices, *(key.indices for key in keys)]))
    coming = [part for part in dict.fromkeys(later.tolist()) if part not in now]

    def has_copy(part: int) -> bool:
        return data.files.has_copy(data.shards[part])

    return sum(1 for _ in takewhile(has_copy, coming)) if all(map(has_copy, now)) else 0


def cache_remark(dataset: object, order: Order | None, nodes: int) -> str | None:
    """Return a warning if shards of a ShardOrder will be downloaded more than once an epoch, or None."""
    data = shards_within(dataset)
    if (
        data is None
        or not data.files.remote_bytes
        or not isinstance(order, ShardOrder)
        or data.storage.cache_dir is None
    ):
        return None
    used = -(-order.shards_in_use // nodes)
    wanted = used * data.files.remote_bytes // len(data.shards)
    if wanted <= data.storage.cache_bytes:
        return None
    fewer = f", or shuffle with fewer lanes (order=lk.ShardOrder(dataset.shard_sizes, lanes=...), now {order.lanes})"
    costs = (
        "shards will be downloaded again and again"
        if data.maps
        else "samples of the others will be requested by ranges"
    )
    return (
        f"Loader: about {used:,} shards are in use at a time on this node, {wanted:,} bytes; the cache holds "
        f"{data.storage.cache_bytes:,}, so {costs}. Give Storage cache_bytes={wanted}{fewer if order.lanes > 1 else ''}."
    )
