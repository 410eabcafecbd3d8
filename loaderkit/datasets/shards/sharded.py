"""Base of datasets over indexed shards: each sample is a row of a shard, read by random access."""

import errno
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar, Generic, TypedDict

import numpy as np
from typing_extensions import TypeVar

from loaderkit.datasets.base import Transform, check_index, check_indices
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.find_shards import find_shards
from loaderkit.datasets.places import Place
from loaderkit.datasets.shards.folder_index import FolderIndexes, fitted
from loaderkit.datasets.shards.index import ShardIndex, index_error, keep_index, saved_indexes
from loaderkit.files.arriving import Arrival
from loaderkit.files.listing import Stat
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, is_remote, open_file, shard_name, stat
from loaderkit.seeding.draws import DeclaresDraws
from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.arrays import Int64Array
from loaderkit.system.open_files import FileLimit, OpenFiles, files_allowed
from loaderkit.system.overrides import defines
from loaderkit.system.parallel import map_waiting
from loaderkit.system.per_thread import PerThread
from loaderkit.system.progress import with_progress

_AT_ONCE = 16  # remote shards that are indexed at the same time
_FETCHED = -1  # key of the next shard's download among the open shards
_WORKERS = 16  # most workers that share a sequential read, each skipping the batches of the others


Opened = TypeVar("Opened", default=Any)  # what `open` returns


class _CopySettings(TypedDict):
    """Keyword arguments for `Storage` about a shard, besides its version."""

    checksum: str
    data_bytes: int


class ShardedDataset(DeclaresDraws, ABC, Generic[Opened]):
    """Base of datasets over files, or other shards, that are indexed once.

    A subclass defines `kind`, `suffixes`, `scan`, `open` and `read`. Each thread opens the shards that it reads and
    keeps some of them open. Open shards are neither pickled nor shared with a forked worker; they are closed when their
    thread ends. A shard that changed after it was indexed is indexed again, with a warning.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        transform: Called with each raw sample.
        index_dir: Folder for index files. None: LOADERKIT_INDEX_DIR, else ~/.cache/loaderkit/index.
        max_open: Shards that a process keeps open; its threads share them. They are fewer if `ulimit -n` allows
            less than twice as many files. `lk.ShardOrder.shards_in_use` says how many all workers together use at a time.
        storage: How to reach remote shards, and where to cache them.
        split: Name of the split to read, for a folder with named splits.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a shard or its index is damaged, or a folder is of a format that must not be read file by file.
    """

    kind: str  # name of the index's format, with a version: "tar-1"
    suffixes: ClassVar[tuple[str, ...]]
    shared_suffixes: ClassVar[tuple[str, ...]] = ()  # further suffixes, which other formats use too
    keeps_index: ClassVar[bool] = True  # whether an index file is saved; False if a scan is as fast as reading it
    reads_folders: ClassVar[bool] = False  # whether `urls` are folders, each with a list of its shards
    files_each: ClassVar[int] = 1  # number of files that an open shard keeps open
    maps: ClassVar[bool] = False  # whether shards are memory-mapped: then a remote one needs a local copy

    def __init__(
        self,
        urls: Urls,
        *,
        transform: Transform | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
        split: str | None = None,
    ) -> None:
        if max_open < 1:
            raise ValueError(f"{type(self).__name__}: max_open is {max_open}, wanted at least 1.")
        self.storage = storage or Storage()
        self.excluded_keys: dict[str, frozenset[str]] = {}  # keys of samples that a split leaves out, by shard
        found = self.find(urls, split)
        self.shards = list(found)
        self._remote = {shard: version for shard, version in found.items() if version is not None}
        unknown = [shard for shard in self.shards if is_remote(shard) and shard not in self._remote]
        self._remote |= dict(zip(unknown, self.storage.stat_many(unknown), strict=True))
        self._checksums: dict[str, str] = {}  # checksums that remote shards must have, from their folder's index
        self._unproven: set[str] = set()  # remote shards whose index is trusted only if the checksum matches
        self._last_read = -1
        self.transform = transform
        self._index_dir = None if index_dir is None else os.fspath(index_dir)
        if self.maps and self.remote_bytes:  # open shards can't be evicted from the cache
            max_open = min(max_open, max(1, self.storage.cache_bytes // max(self.remote_sizes.values())))
        self._limit = FileLimit(max_open, self.files_each)
        self._changed: list[str] = []
        self._indexes = self._index_all()
        if self._changed:
            warnings.warn(
                f"{type(self).__name__}: {len(self._changed)} of {len(self.shards)} shards have changed since they were "
                f"indexed, the first is {self._changed[0]}; they were indexed again.",
                stacklevel=2,
            )
        self._ends = np.cumsum([index.count for index in self._indexes], dtype=np.int64)
        self._opened = PerThread(OpenFiles, self._limit)

    def find(self, urls: Urls, split: str | None) -> Mapping[str, Stat | None]:
        """Return the shards that URLs name, in order, each with its version if it is remote and known, else None."""
        suffixes = self.suffixes + self.shared_suffixes
        return find_shards(urls, suffixes, self.storage, split=split, left_out=self.excluded_keys)

    @abstractmethod
    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        """Read through a shard. Return its number of samples, and their offsets, or None if the format needs none."""

    @abstractmethod
    def open(self, shard: str, index: ShardIndex) -> Opened:
        """Return an open shard. It must not refer to the dataset. Its `close()`, if it has one, closes it."""

    @abstractmethod
    def read(self, handle: Opened, rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        """Return raw samples (B,) of an open shard, in the order of `rows`, without drawing random numbers."""

    @staticmethod
    def has_offsets(index: ShardIndex) -> bool:  # noqa: ARG004 - for formats to use
        """Return whether an index's offsets are valid for this format: none points outside the shard."""
        return True

    @property
    def shard_sizes(self) -> Int64Array:
        """Number of samples in each shard, (S,) int64. A Loader with shuffle=True makes a ShardOrder from them."""
        return np.array([index.count for index in self._indexes], dtype=np.int64)

    def proven_index(self, part: int) -> ShardIndex:
        """Return a shard's index with offsets. First check the shard's checksum if its index is not proven yet."""
        shard = self.shards[part]
        if shard in self._unproven:
            self.open_file(shard).close()
            self._unproven.discard(shard)
        return self._load(part)

    def scanned_index(self, shard: str) -> ShardIndex:
        """Scan a shard and return its new index."""
        found = self.stat(shard)  # before the scan
        count, offsets = self.scan(shard)
        return ShardIndex(kind=self.kind, count=count, offsets=offsets, **found._asdict())

    def _index_all(self) -> list[ShardIndex]:
        folders = FolderIndexes(self.storage)
        if not self._remote:
            return [self._index(shard, folders) for shard in self.shards]
        first = self._index(self.shards[0], folders)  # opens the session that the other requests share
        # Without an index each shard must be read: read several at a time, and show progress.
        rest = map_waiting(lambda shard: self._index(shard, folders), self.shards[1:], _AT_ONCE)
        return [first, *with_progress(rest, len(self.shards) - 1, "indexing")]

    def _index(self, shard: str, folders: FolderIndexes) -> ShardIndex:
        """Return a shard's index: from its own index file, else from its folder's, else a new one, which is saved."""
        found = self.stat(shard)
        candidates: list[ShardIndex] = []
        for path, index in saved_indexes(shard, self.kind, self._index_dir) if self.keeps_index else ():
            if index.fits(found):
                if not self.has_offsets(index):
                    raise index_error(path, "its offsets are not those of a shard")
                return index
            candidates.append(index)
        entry = folders.get(shard) if self.keeps_index else None
        candidates += [] if entry is None or entry.kind != self.kind else [entry]
        for known in candidates:
            if (same := fitted(known, shard, found)) is None:
                continue
            if is_remote(shard):
                self._checksums[shard] = same.content
                if not known.fits(found):
                    self._unproven.add(shard)
            else:  # read the offsets now, so that forked workers share them
                same = same.loaded()
                if not self.has_offsets(same):
                    continue
                if not known.fits(found):  # a copied shard: compare its content only once
                    keep_index(shard, same, self._index_dir)
            return same
        if candidates:
            self._changed.append(shard)
        index = self.scanned_index(shard)
        if self.keeps_index:
            keep_index(shard, index, self._index_dir)
        return index

    @property
    def remote_sizes(self) -> dict[str, int]:
        """Sizes of the remote shards in bytes, by URL."""
        return {shard: found.size_bytes for shard, found in self._remote.items()}

    @property
    def remote_bytes(self) -> int:
        """Total size of the remote shards in bytes."""
        return sum(self.remote_sizes.values())

    def cache_cost(self) -> str | None:
        """Return how much of the remote shards the cache holds, in words; None if all shards are local."""
        if not self._remote:
            return None
        shards = f"{len(self._remote):,} remote shards of {self.remote_bytes:,} bytes in all"
        if self.storage.cache_dir is None:
            return f"none, samples are requested from {shards}"
        share = min(1.0, self.storage.cache_bytes / max(1, self.remote_bytes))
        return f"{os.fspath(self.storage.cache_dir)} holds {share:.0%} of an epoch: {shards}"

    def stat(self, shard: str) -> Stat:
        """Return a shard's version: the current one if it is local, that at which it was found if it is remote."""
        return self._remote.get(shard) or stat(shard)

    def open_file(self, shard: str) -> BinaryIO:
        """Open a shard to read bytes. A remote one is opened from the cache if it has room, else by range requests."""
        if not is_remote(shard):
            return open_file(shard)
        whole = self.maps or shard in self._unproven  # downloading checks the checksum
        return self.storage.open(shard, self._remote.get(shard), whole=whole, **self._copy_settings(shard))

    def open_soon(self, shard: str) -> BinaryIO:
        """Open a shard to read bytes. If possible, read its first samples by range requests during the download."""
        if not is_remote(shard) or shard in self._unproven:
            return self.open_file(shard)
        arrival: Arrival | None = self._opened.own.handles.pop(_FETCHED, None)
        if arrival is not None and arrival.url != shard:
            arrival.close()
            arrival = None
        return self.storage.open_soon(shard, self.stat(shard), arrival=arrival, **self._copy_settings(shard))

    def _copy_settings(self, shard: str) -> _CopySettings:
        return {"checksum": self._checksums.get(shard, ""), "data_bytes": self.remote_bytes}

    def open_head(self, shard: str) -> BinaryIO:
        """Open a shard to read a small part of it. A remote one is read by range requests, even if there is a cache."""
        if is_remote(shard):
            return self.storage.open_ranges(shard, self.stat(shard).size_bytes)
        return self.open_file(shard)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        sample = self._gather([index % len(self)])[0]
        # Without `per_sample`: the caller has already set this sample's seed.
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        samples = self._gather(indices)
        return samples if self.transform is None else per_sample(self.transform, samples)

    def by_shard(self, indices: Sequence[int] | Int64Array) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Group indices (B,) by shard. For each, yield its number, positions in `indices` (R,), and rows in it (R,)."""
        wanted = check_indices(self, indices)
        if not wanted.size:
            return
        if len(self.shards) == 1:
            yield 0, np.arange(len(wanted)), wanted
            return
        part = int(np.searchsorted(self._ends, wanted[0], side="right"))
        rows = wanted - (self._ends[part] - self._indexes[part].count)
        if rows.min() >= 0 and rows.max() < self._indexes[part].count:  # one shard, as in most batches of a ShardOrder
            yield part, np.arange(len(rows)), rows
        else:
            for each, places in group_places(np.searchsorted(self._ends, wanted, side="right")):
                yield each, places, wanted[places] - (self._ends[each] - self._indexes[each].count)

    def to_read(self, indices: Sequence[int] | Int64Array) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """As `by_shard`, for samples read now. In a sequential read, the next remote shard's download begins."""
        if self._remote and len(indices):
            wanted = check_indices(self, indices)
            part = int(self.parts_of(wanted[:1])[0])
            self.handle(part)  # open it before the next download begins; this does not wait for its own download
            self._look_ahead(part, wanted)
        return self.by_shard(indices)

    def parts_of(self, indices: Int64Array) -> Int64Array:
        """Return the number of the shard that holds each index, (B,)."""
        return np.searchsorted(self._ends, indices, side="right")

    def has_copy(self, part: int) -> bool:
        """Return whether shard number `part` is local, or completely in the cache."""
        shard = self.shards[part]
        return not is_remote(shard) or self.storage.has_copy(shard, self.stat(shard))

    def place(self, index: int) -> Place:
        """Return where a sample is: its shard, its row there, and its first byte and key if the index has them."""
        check_index(self, index)
        [(part, _, rows)] = self.by_shard([index % len(self)])
        row = int(rows[0])
        return Place(self.shards[part], row, *self.start_and_key(self._load(part), row))

    @staticmethod
    def start_and_key(index: ShardIndex, row: int) -> tuple[int | None, str | None]:  # noqa: ARG004 - for formats
        """Return a sample's first byte in the shard, and its key; None for each that the format lacks."""
        return None, None

    def handle(self, part: int) -> Opened:
        """Return this thread's open shard number `part`, opening it if needed; raise a ShardError if it has changed."""
        opened = self._opened.own
        if opened.process != os.getpid():  # a forked worker must not share file positions with its parent
            opened.reset_after_fork(closing=True)
        handles = opened.handles
        if part in handles:
            handles.move_to_end(part)
        else:
            opened.make_room()
            shard, index = self.shards[part], self._load(part)
            if not index.fits(self.stat(shard)):
                raise ShardError(
                    f"{shard}: changed since it was indexed. Make the dataset again, which indexes it again."
                )
            handles[part] = self._open(opened, shard, index)
        found: Opened = handles[part]
        return found

    def fingerprint(self) -> str:
        """Return the shards' names and numbers of samples. Their folder is left out, so it may change."""
        names = [f"{shard_name(shard)}:{index.count}" for shard, index in zip(self.shards, self._indexes, strict=True)]
        return f"{self.kind} {', '.join(names)}"

    @property
    def ends(self) -> Int64Array:
        """The index after the last sample of each shard, (S,) int64."""
        return self._ends

    def close(self) -> None:
        """Close this thread's open shards; the next read opens them again."""
        self._opened.own.close()

    def close_shards(self, parts: Iterable[int]) -> None:
        """Close the shards with these numbers, if this thread has them open."""
        opened = self._opened.own
        if opened.process == os.getpid():
            opened.close_some(parts)

    def _look_ahead(self, part: int, wanted: Int64Array) -> None:
        """If samples are read in sequence, begin to download the shard after `part`, and close those before it."""
        first, last = int(wanted[0]), int(wanted[-1])
        is_run, skipped = last - first == len(wanted) - 1, first - self._last_read - 1
        self._last_read = last
        handles = self._opened.own.handles
        if not is_run or not 0 <= skipped < _WORKERS * len(wanted):
            return
        if not skipped:  # no other worker shares this sequential read
            self.close_shards([one for one in handles if _FETCHED < one < part])
        following = self.shards[part + 1 : part + 2]
        fetched = getattr(handles.get(_FETCHED), "url", None)
        if part + 1 in handles or not following or following[0] == fetched or not is_remote(following[0]):
            return
        self.close_shards([_FETCHED])
        arrival = self.storage.fetch(following[0], self.stat(following[0]), **self._copy_settings(following[0]))
        if arrival is not None:
            handles[_FETCHED] = arrival

    def _load(self, part: int) -> ShardIndex:
        index = self._indexes[part]
        if index.later is not None:
            index = index.loaded()
            if not self.has_offsets(index):
                raise ShardError(f"{self.shards[part]}: the index of its folder is damaged. Write it again.")
            self._indexes[part] = index
        return index

    def _gather(self, indices: Sequence[int]) -> list[Any]:
        samples: list[object] = [None] * len(indices)
        for part, places, rows in self.to_read(indices):
            read = self.read(self.handle(part), rows, self._indexes[part])
            for place, sample in zip(places.tolist(), read, strict=True):
                samples[place] = sample
        return samples

    def _open(self, opened: OpenFiles, shard: str, index: ShardIndex) -> object:
        """Open a shard. If too many files are open, close this thread's other shards and try again."""
        try:
            return self.open(shard, index)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        opened.close()
        try:
            return self.open(shard, index)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise OSError(
                    error.errno,
                    f"{type(self).__name__}: too many files are open in this process, which may open {files_allowed()}, to "
                    f"open {shard}. Allow more (ulimit -n), or keep fewer shards open: max_open={self._limit.handles} now.",
                ) from error
            raise

    def __getstate__(self) -> dict[str, object]:
        limit = FileLimit(self._limit.handles, self._limit.files_each)  # a copy of the dataset counts its own files
        return self.__dict__ | {"_limit": limit, "_opened": PerThread(OpenFiles, limit)}


def shards_within(dataset: Any) -> ShardedDataset | None:
    """Return the ShardedDataset that a dataset is, or that it wraps as a split, subset or map; None without one."""
    while not isinstance(dataset, ShardedDataset):
        if not defines(dataset, "dataset"):
            return None
        dataset = dataset.dataset
    return dataset


def group_places(numbers: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """Yield each distinct number in `numbers` (B,), in ascending order, with its positions in ascending order."""
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=False)
