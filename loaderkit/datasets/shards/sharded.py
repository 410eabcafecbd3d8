"""Base of datasets over indexed shards: each sample is a row of a shard, read by random access."""

import copy
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic

import numpy as np

from loaderkit.datasets.base import Transform, check_index, check_indices
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.find_shards import find_shards
from loaderkit.datasets.places import Place
from loaderkit.datasets.shards.files import ShardFiles
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.index_finder import IndexFinder
from loaderkit.datasets.shards.indexes import ShardIndexes
from loaderkit.datasets.shards.open_shards import Opened, OpenShards
from loaderkit.files.listing import Stat
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, shard_name
from loaderkit.seeding.draws import Declares
from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.arrays import Int64Array
from loaderkit.system.open_files import FileLimit
from loaderkit.system.overrides import defines


class ShardedDataset(Declares, ABC, Generic[Opened]):
    """Base of datasets over files, or other shards, that are indexed once.

    A subclass defines `kind`, `suffixes`, `scan`, `open` and `read`. It reads a shard's bytes by `files.open`,
    `files.open_head` or `opened.open_soon`. Each thread opens the shards that it reads and keeps some of them open. Open
    shards are neither pickled nor shared with a forked worker; they are closed when their thread ends. A shard that
    changed after it was indexed is indexed again, with a warning.

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
        self.files = ShardFiles(storage or Storage(), maps=self.maps)
        self.transform = transform
        self.excluded_keys: dict[str, frozenset[str]] = {}  # keys of samples that a split leaves out, by shard
        found = self.find(urls, split)
        self.shards = list(found)
        self.files.add_all(found)
        if self.maps and self.files.remote_bytes:  # open shards can't be evicted from the cache
            largest = max(found.size_bytes for found in self.files.remote.values())
            max_open = min(max_open, max(1, self.storage.cache_bytes // largest))
        limit = FileLimit(max_open, self.files_each)
        self.opened: OpenShards[Opened] = OpenShards(type(self).__name__, self.shards, self.files, limit)
        finder = IndexFinder(self, self.files, index_dir)
        self.indexes = ShardIndexes(self.shards, self.find_indexes(finder), self.has_offsets)
        if finder.changed:
            warnings.warn(
                f"{type(self).__name__}: {len(finder.changed)} of {len(self.shards)} shards have changed since they were "
                f"indexed, the first is {finder.changed[0]}; they were indexed again.",
                stacklevel=2,
            )

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

    @staticmethod
    def start_and_key(index: ShardIndex, row: int) -> tuple[int | None, str | None]:  # noqa: ARG004 - for formats
        """Return a sample's first byte in the shard, and its key; None for each that the format lacks."""
        return None, None

    def given_index(self, shard: str) -> ShardIndex | None:
        """Return the index that comes with a shard, which is used before all others; None if there is none."""
        return None

    @property
    def gives_indexes(self) -> bool:
        """Whether `given_index` may return an index, so that each shard has to be asked for its own."""
        return type(self).given_index is not ShardedDataset.given_index

    def find_indexes(self, finder: IndexFinder) -> list[ShardIndex]:
        """Return the indexes of all shards."""
        return finder.find(self.shards)

    def needs_download(self, part: int) -> bool:
        """Return whether shard number `part` is remote, and not in the cache."""
        return not self.files.has_copy(self.shards[part])

    @property
    def storage(self) -> Storage:
        """How to reach remote shards, and where to cache them."""
        return self.files.storage

    @storage.setter
    def storage(self, storage: Storage) -> None:
        self.files.storage = storage

    @property
    def shard_sizes(self) -> Int64Array:
        """Number of samples in each shard, (S,) int64. A Loader with shuffle=True makes a ShardOrder from them."""
        return self.indexes.counts

    def proven_index(self, part: int) -> ShardIndex:
        """Return a shard's index with offsets. First check the shard's checksum if its index is not proven yet."""
        self.files.prove(self.shards[part])
        return self.indexes.load(part)

    def scanned_index(self, shard: str) -> ShardIndex:
        """Scan a shard and return its new index."""
        found = self.files.stat(shard)  # before the scan
        count, offsets = self.scan(shard)
        return ShardIndex(kind=self.kind, count=count, offsets=offsets, **found._asdict())

    def __len__(self) -> int:
        return self.indexes.size

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        sample = self._gather([index % len(self)])[0]
        # Without `per_sample`: the caller has already set this sample's seed.
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        samples = self._gather(indices)
        return samples if self.transform is None else per_sample(self.transform, samples)

    def to_read(self, indices: Sequence[int] | Int64Array) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Group indices (B,) of samples that are read now, as `ShardIndexes.by_shard` does.

        Remote shards that are waited for one after another are downloaded together. In a sequential read, the next one's
        download begins.
        """
        wanted = check_indices(self, indices)
        if self.files.remote and wanted.size:
            parts = self.indexes.parts_of(wanted)
            part = int(parts[0])
            if (parts != part).any():
                self.fetch(one for one in np.unique(parts).tolist() if self.files.is_small(self.shards[one]))
            self.handle(part)  # open it before the next download begins; this does not wait for its own download
            if self.opened.follows(part, wanted) and part + 1 < len(self.shards):
                self.fetch([part + 1])
        return self.indexes.by_shard(wanted)

    def place(self, index: int) -> Place:
        """Return where a sample is: its shard, its row there, and its first byte and key if the index has them."""
        check_index(self, index)
        [(part, _, rows)] = self.indexes.by_shard(np.array([index % len(self)]))
        row = int(rows[0])
        return Place(self.shards[part], row, *self.start_and_key(self.indexes.load(part), row))

    def handle(self, part: int) -> Opened:
        """Return this thread's open shard number `part`, opening it if needed; raise a ShardError if it has changed."""
        return self.opened.get(part, self._open)

    def fetch(self, parts: Iterable[int]) -> None:
        """Begin to download shards by their numbers, in this order, if they need it and this thread `can_fetch` them."""
        self.opened.fetch(parts, self.needs_download)

    def fingerprint(self) -> str:
        """Return the shards' names and numbers of samples. Their folder is left out, so it may change."""
        counts = self.indexes.counts.tolist()
        names = [f"{shard_name(shard)}:{count}" for shard, count in zip(self.shards, counts, strict=True)]
        return f"{self.kind} {', '.join(names)}"

    def close(self) -> None:
        """Close this thread's open shards; the next read opens them again."""
        self.opened.close()

    def _gather(self, indices: Sequence[int]) -> list[Any]:
        samples: list[object] = [None] * len(indices)
        for part, places, rows in self.to_read(indices):
            read = self.read(self.handle(part), rows, self.indexes.load(part))
            for place, sample in zip(places.tolist(), read, strict=True):
                samples[place] = sample
        return samples

    def _open(self, part: int) -> Opened:
        shard, index = self.shards[part], self.indexes.load(part)
        if not index.fits(self.files.stat(shard)):
            raise ShardError(f"{shard}: changed since it was indexed. Make the dataset again, which indexes it again.")
        return self.open(shard, index)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"opened": copy.copy(self.opened)}


def shards_within(dataset: Any) -> ShardedDataset | None:
    """Return the ShardedDataset that a dataset is, or that it wraps as a split, subset or map; None without one."""
    while not isinstance(dataset, ShardedDataset):
        if not defines(dataset, "dataset"):
            return None
        dataset = dataset.dataset
    return dataset
