"""The files of a dataset's shards: their versions, and how they are opened."""

import os
from collections.abc import Mapping
from typing import BinaryIO, TypedDict

from loaderkit.files.arriving import Arrival
from loaderkit.files.listing import Stat
from loaderkit.files.storage import Storage
from loaderkit.files.urls import is_remote, open_file, stat


class _CopySettings(TypedDict):
    """Keyword arguments for `Storage` about a shard, besides its version."""

    checksum: str
    data_bytes: int


class ShardFiles:
    """The files of a dataset's shards. A remote one is always opened at the version at which it was found.

    `remote` has the versions of the remote shards by URL.

    Args:
        storage: How to reach remote shards, and where to cache them.
        maps: Whether shards are memory-mapped: then a remote one needs a local copy.
    """

    def __init__(self, storage: Storage, *, maps: bool) -> None:
        self.storage, self.maps = storage, maps
        self.remote: dict[str, Stat] = {}
        self._counted = 0, 0  # a number of remote shards, and their bytes in all
        self._checksums: dict[str, str] = {}  # that remote shards must have
        self._unproven: set[str] = set()  # remote shards whose index is trusted only if the checksum matches

    def add_all(self, found: Mapping[str, Stat | None]) -> None:
        """Add the shards, each with its version if it is remote and known, else None."""
        self.remote |= {shard: version for shard, version in found.items() if version is not None}
        unknown = [shard for shard in found if is_remote(shard) and shard not in self.remote]
        self.remote |= dict(zip(unknown, self.storage.stat_many(unknown), strict=True))

    def add(self, path: str) -> None:
        """Add another file that shards need."""
        if is_remote(path) and path not in self.remote:
            self.remote[path] = self.storage.stat(path)

    def expect(self, shard: str, checksum: str, *, proven: bool) -> None:
        """Check a remote shard's checksum when it is downloaded. Until `proven`, it is read only from a checked copy."""
        self._checksums[shard] = checksum
        if not proven:
            self._unproven.add(shard)

    def prove(self, shard: str) -> None:
        """Check the checksum of a shard that is not proven yet, by downloading it."""
        if shard in self._unproven:
            self.open(shard).close()
            self._unproven.discard(shard)

    @property
    def remote_bytes(self) -> int:
        """Total size of the remote shards in bytes."""
        count, size_bytes = self._counted
        if count != len(self.remote):  # each opening asks, so not for all shards each time
            versions = list(self.remote.values())  # a copy, as another thread may add a file
            size_bytes = sum(found.size_bytes for found in versions)
            self._counted = len(versions), size_bytes
        return size_bytes

    def cache_cost(self) -> str | None:
        """Return how much of the remote shards the cache holds, in words; None if all shards are local."""
        if not self.remote:
            return None
        shards = f"{len(self.remote):,} remote shards of {self.remote_bytes:,} bytes in all"
        if self.storage.cache_dir is None:
            return f"none, samples are requested from {shards}"
        share = min(1.0, self.storage.cache_bytes / max(1, self.remote_bytes))
        return f"{os.fspath(self.storage.cache_dir)} holds {share:.0%} of an epoch: {shards}"

    def stat(self, shard: str) -> Stat:
        """Return a shard's version: the current one if it is local, that at which it was found if it is remote."""
        return self.remote.get(shard) or stat(shard)

    def has_copy(self, shard: str) -> bool:
        """Return whether a shard is local, or completely in the cache."""
        return not is_remote(shard) or self.storage.has_copy(shard, self.stat(shard))

    def is_small(self, shard: str) -> bool:
        """Return whether the first read of a remote shard waits for its download."""
        return shard in self.remote and self.storage.is_small(self.remote[shard])

    def open(self, shard: str) -> BinaryIO:
        """Open a shard to read bytes. A remote one is opened from the cache if it has room, else by range requests."""
        if not is_remote(shard):
            return open_file(shard)
        whole = self.maps or shard in self._unproven  # downloading checks the checksum
        return self.storage.open(shard, self.remote.get(shard), whole=whole, **self._copy_settings(shard))

    def open_head(self, shard: str) -> BinaryIO:
        """Open a shard to read a small part of it. A remote one is read by range requests, even if there is a cache."""
        if is_remote(shard):
            return self.storage.open_ranges(shard, self.stat(shard).size_bytes)
        return self.open(shard)

    def open_soon(self, shard: str, arrival: Arrival | None) -> BinaryIO:
        """Open a shard to read bytes. If possible, read its first samples by range requests during the download.

        If `fetch` has begun the download, pass what it returned as `arrival`.
        """
        if not is_remote(shard) or shard in self._unproven:
            if arrival is not None:
                arrival.close()
            return self.open(shard)
        return self.storage.open_soon(shard, self.stat(shard), arrival=arrival, **self._copy_settings(shard))

    def fetch(self, shard: str) -> Arrival | None:
        """Begin to download a remote shard in the background; None without a cache."""
        return self.storage.fetch(shard, self.stat(shard), **self._copy_settings(shard))

    def _copy_settings(self, shard: str) -> _CopySettings:
        return {"checksum": self._checksums.get(shard, ""), "data_bytes": self.remote_bytes}
