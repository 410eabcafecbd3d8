"""Samples in indexed shards: any sample is (shard, row), so that all of a Loader's laws hold."""

import bisect
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, ClassVar

import numpy as np

from loaderkit.datasets.base import check_index
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.remote.storage import Stat, Storage
from loaderkit.datasets.remote.urls import Urls, expand, is_remote, open_file, shard_name, stat
from loaderkit.datasets.shards.index import ShardIndex, load_index, save_index
from loaderkit.seeding.draws import DeclaresDraws
from loaderkit.seeding.samples import per_sample
from loaderkit.system.arrays import Int64Array
from loaderkit.system.per_thread import Opened, PerThread
from loaderkit.system.process import process_id

_UNSIGNED = np.dtype(np.uint64)  # a view takes half as long with it as with the type


class ShardedDataset(DeclaresDraws, ABC):
    """A dataset over shards that were indexed once.

    A format gives `kind`, `suffixes`, `scan`, `open` and `read`. Handles are opened
    where they are used, by each thread for itself, kept for the last `max_open` shards,
    and never pickled or shared with a forked worker; a thread's are closed when it ends.
    Several threads may read at once. A shard that has changed since it was indexed is
    indexed again, with a warning.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        transform: From a raw sample to a sample; its random numbers are the sample's own.
        index_dir: Where index files lie; None means beside local shards, and
            in ~/.cache/loaderkit/index for remote ones.
        max_open: Shards kept open by each thread that reads; a ShardOrder has about lanes x (1 + window / samples in a
            shard) in use, over all workers.
        storage: How remote shards are reached, and where copies of them are kept.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a shard, or its index, is not what it should be.
    """

    kind: str  # of the index, with a version: "tar-1"
    suffixes: ClassVar[tuple[str, ...]]
    keeps_index: ClassVar[bool] = True  # in a file; False where a scan is as quick as reading that

    def __init__(
        self,
        urls: Urls,
        *,
        transform: Callable[[Any], Any] | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 128,
        storage: Storage | None = None,
    ) -> None:
        if max_open < 1:
            raise ValueError(f"{type(self).__name__}: max_open is {max_open}, wanted at least 1.")
        self._storage = storage or Storage()
        self.shards = expand(urls, self.suffixes, self._storage)
        remote = [shard for shard in self.shards if is_remote(shard)]
        self._remote = dict(zip(remote, self._storage.stat_many(remote), strict=True))
        self.transform = transform
        self._index_dir = None if index_dir is None else os.fspath(index_dir)
        self._max_open = max_open
        self._changed: list[str] = []
        self._indexes = [self.index_shard(shard) for shard in self.shards]
        if self._changed:
            warnings.warn(
                f"{type(self).__name__}: {len(self._changed)} of {len(self.shards)} shards have changed since they were "
                f"indexed, the first is {self._changed[0]}; they were indexed again.",
                stacklevel=2,
            )
        self._ends = np.cumsum([index.count for index in self._indexes], dtype=np.int64)
        self._end_list = self._ends.tolist()  # where one is looked up: numpy takes longer for that
        self._opened = PerThread(Opened)

    @abstractmethod
    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        """Read through a shard once: return its number of samples, and their offsets where the format needs them."""

    @abstractmethod
    def open(self, shard: str, index: ShardIndex) -> Any:
        """Return a handle on a shard, which does not hold the dataset; closed by its `close()` where it has one."""

    @abstractmethod
    def read(self, handle: Any, rows: Int64Array, index: ShardIndex) -> list[Any]:
        """Return raw samples (B,) of an open shard, in the order of the rows. Draws no random numbers."""

    @property
    def shard_sizes(self) -> Int64Array:
        """Number of samples (S,) in each shard; a Loader with shuffle=True makes a ShardOrder of them."""
        return np.array([index.count for index in self._indexes], dtype=np.int64)

    def index_shard(self, shard: str) -> ShardIndex:
        """Return a shard's index, made and saved now if there is none that fits."""
        index = load_index(shard, self.kind, self._index_dir) if self.keeps_index else None
        found = self.stat(shard)
        if index is not None and not index.fits(found):
            self._changed.append(shard)
            index = None
        if index is None:
            count, offsets = self.scan(shard)
            index = ShardIndex(kind=self.kind, count=count, offsets=offsets, **found._asdict())
            if self.keeps_index:
                save_index(shard, index, self._index_dir)
        return index

    def stat(self, shard: str) -> Stat:
        """Return what tells a shard from its other versions: of a local one now, of a remote one when it was found."""
        return self._remote.get(shard) or stat(shard)

    def refuse_change(self, shard: str, index: ShardIndex) -> None:
        """Refuse a shard whose samples may lie elsewhere by now.

        Raises:
            ShardError: If it has changed.
        """
        if not index.fits(self.stat(shard)):
            raise ShardError(f"{shard}: changed since it was indexed. Make the dataset anew, which indexes it again.")

    def open_file(self, shard: str) -> BinaryIO:
        """Open a shard's bytes; one of the machine's own files unless a remote shard is read without a cache."""
        return open_file(shard, self._storage, self._remote.get(shard))

    def __len__(self) -> int:
        return int(self._end_list[-1])

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        sample = self._gather([index % len(self)])[0]
        # Not through per_sample: the seed is that of the sample which the caller is reading.
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        samples = self._gather(indices)
        return samples if self.transform is None else per_sample(self.transform, samples)

    def by_shard(self, indices: Sequence[int] | Int64Array) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Sort indices (B,) by shard: yield the shard's number, places in the indices, and rows in the shard.

        Raises:
            IndexError: If an index is not in the dataset.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        if not wanted.size:
            return
        alone = self.one_shard(wanted)
        if alone is not None:
            yield alone[0], np.arange(len(wanted)), alone[1]
            return
        low, high = int(np.minimum.reduce(wanted)), int(np.maximum.reduce(wanted))
        if low < 0 or high >= len(self):
            outside = low if low < 0 else high
            raise IndexError(f"{type(self).__name__}: index {outside} in a dataset of {len(self):,} samples.")
        ends = self._end_list
        first, last = bisect.bisect_right(ends, low), bisect.bisect_right(ends, high)
        for part, places in by_number(np.searchsorted(self._ends, wanted, side="right"), first, last):
            yield part, places, wanted[places] - (ends[part] - self._indexes[part].count)

    def one_shard(self, indices: Int64Array) -> tuple[int, Int64Array] | None:
        """Return the number of the shard that all indices (B,) lie in, B > 0, and their rows there; None if there is none."""
        part = bisect.bisect_right(self._end_list, indices.item(0))
        if part == len(self._end_list):
            return None
        start = self._end_list[part - 1] if part else 0
        rows = indices - start if start else indices
        # Without a sign, what lies before the shard is beyond it. `argmax` takes a sixth of the time of `max`.
        unsigned = rows.view(_UNSIGNED)
        return (part, rows) if unsigned.item(unsigned.argmax()) < self._end_list[part] - start else None

    def handle(self, part: int) -> Any:
        """Return the open shard of that number, which is this thread's own."""
        opened = self._opened.own
        if opened.process != process_id():  # a forked worker must not share file positions with its parent
            opened.begin_anew(closing=True)
        handles = opened.handles
        if part in handles:
            handles.move_to_end(part)
        else:
            while len(handles) >= self._max_open:
                _close(handles.popitem(last=False)[1])
            handles[part] = self.open(self.shards[part], self._indexes[part])
        return handles[part]

    def fingerprint(self) -> str:
        """Name the shards and their sizes; the folder they lie in may change."""
        names = [f"{shard_name(shard)}:{index.count}" for shard, index in zip(self.shards, self._indexes, strict=True)]
        return f"{self.kind} {', '.join(names)}"

    def close(self) -> None:
        """Close the shards that this thread has open; they are opened again where they are needed."""
        self._opened.own.close()

    def locate(self, indices: Sequence[int]) -> dict[int, tuple[list[int], list[int]]]:
        """Sort indices (B,) by shard: return, by the shard's number, places in the indices, and rows in the shard.

        Raises:
            IndexError: If an index is not in the dataset.
        """
        ends = self._end_list
        least, most = (min(indices), max(indices)) if len(indices) else (-1, -1)
        if least >= 0 and most < ends[-1]:
            part = bisect.bisect_right(ends, least)
            if most < ends[part]:  # as most batches of a ShardOrder with large shards
                start = ends[part] - self._indexes[part].count
                return {part: (list(range(len(indices))), [index - start for index in indices])}
        parts: dict[int, tuple[list[int], list[int]]] = {}
        low, high = 0, -1
        for place, index in enumerate(indices):
            if not low <= index < high:
                if not 0 <= index < len(self):
                    raise IndexError(f"{type(self).__name__}: index {index} in a dataset of {len(self):,} samples.")
                part = bisect.bisect_right(ends, index)
                low, high = ends[part] - self._indexes[part].count, ends[part]
                places, rows = parts.setdefault(part, ([], []))
            places.append(place)
            rows.append(index - low)
        return parts

    def _gather(self, indices: Sequence[int]) -> list[Any]:
        parts = self.locate(indices)
        samples: list[Any] = [None] * len(indices)
        for part, (places, rows) in parts.items():
            read = self.read(self.handle(part), np.array(rows, dtype=np.int64), self._indexes[part])
            if len(parts) == 1:
                return read
            for place, sample in zip(places, read, strict=True):
                samples[place] = sample
        return samples

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": PerThread(Opened)}


def by_number(numbers: Int64Array, low: int, high: int) -> Iterator[tuple[int, Int64Array]]:
    """Sort numbers (B,) from low to high: yield each that occurs, and its places."""
    if high - low < 8:  # then to look for each is quicker than to sort
        for number in sorted(set(numbers.tolist())):
            yield number, np.flatnonzero(numbers == number)
        return
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=True)


def _close(handle: Any) -> None:
    close = getattr(handle, "close", None)
    if callable(close):
        close()
