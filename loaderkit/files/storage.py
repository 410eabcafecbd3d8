"""Settings for remote files: how to reach them, and where to keep local copies."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from loaderkit.files.arriving import Arrival, ArrivingFile
from loaderkit.files.listing import Stat, refuse_change
from loaderkit.files.ranges import RangeFile
from loaderkit.files.requests import Requests
from loaderkit.system.checks import listed
from loaderkit.system.retry import Retry
from loaderkit.system.shared_counts import SharedCounts

if TYPE_CHECKING:
    from loaderkit.files.copies import Copy

_SOON_BYTES = 4 << 20  # readers of smaller files wait for the download


@dataclass(frozen=True, slots=True)
class Storage:
    """How to reach remote shards, and where to keep copies of them.

    Shards are downloaded whole by parallel requests, once for all processes of a host that share `cache_dir`. To make
    room, the cache removes copies that no process has open: first copies of other remote folders, then the most
    recently opened. If all copies are in use, a shard is read by range requests. Requests that fail with a transient
    error are repeated. If one of several parallel requests takes much longer than the others, it is made a second time.

    Args:
        options: Options of the file system, as fsspec takes them: `{"key": ..., "secret": ..., "endpoint_url": ...}` for
            S3, `{"headers": {...}}` for HTTP.
        cache_dir: Folder of the copies; None reads byte ranges and keeps no copies.
        cache_bytes: Limit for the size of all copies. Files that are memory-mapped (tokens, `.npy`) must be whole. If
            all copies are in use, such files exceed the limit by the size of those copies.
        retry: How often and how long to repeat a request.
        timeout_s: Time limit of one request of at most 4 MiB.

    Raises:
        ValueError: If cache_bytes is less than 1, or timeout_s is not positive.

    Examples:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/texts/a.jsonl", b'{"id": 1}')
        >>> storage = lk.Storage(cache_dir="copies", cache_bytes=1 << 30)
        >>> dataset = lk.JsonlDataset("memory://texts/*.jsonl", storage=storage, index_dir="index")
        >>> dataset[0]
        {'id': 1}
    """

    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # it may hold secrets
    _: KW_ONLY
    cache_dir: str | os.PathLike[str] | None = "~/.cache/loaderkit/shards"
    cache_bytes: int = 1 << 36
    retry: Retry = field(default_factory=Retry)
    timeout_s: float = 60.0
    counts: SharedCounts = field(
        default_factory=partial(SharedCounts, "bytes", "opened", "hits"), init=False, repr=False, compare=False
    )
    _requests: Requests = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.cache_bytes < 1 or self.timeout_s <= 0:
            raise ValueError(
                f"Storage: cache_bytes is {self.cache_bytes}, timeout_s {self.timeout_s}; wanted at least 1, and more than 0."
            )
        requests = Requests(options=self.options, retry=self.retry, timeout_s=self.timeout_s, counts=self.counts)
        object.__setattr__(self, "_requests", requests)

    def stat(self, url: str) -> Stat:
        """Return a file's current version.

        Raises:
            FileNotFoundError: If the file does not exist.
            PermissionError: If the server refuses access.
            OSError: If the server cannot be reached, or does not know the size.
        """
        return self._requests.stat(url)

    def stat_many(self, urls: Sequence[str]) -> list[Stat]:
        """Return the versions of files, by parallel requests."""
        return self._requests.stat_many(urls)

    def find(self, url: str, suffixes: Sequence[str], marks: list[str] | None = None) -> dict[str, Stat | None]:
        """Return the files at a URL: one file, the matches of a glob, or the files of a folder with one of the suffixes.

        A file's version is the one in the listing, which saves a request; None if the listing has none. Paths in a
        folder that may be marks of other formats are appended to `marks`; see `find_marks`.
        """
        return self._requests.find(url, listed("Storage", "suffixes", suffixes), [] if marks is None else marks)

    def read(self, url: str, start: int, stop: int, size_bytes: int | None = None, *, apart: bool = False) -> bytes:
        """Return a file's bytes from `start` to before `stop`; with `size_bytes=None`, fewer if the file ends before.

        None is for small files such as an index, which are read before workers are forked: by fsspec, or with `apart`
        by a separate process.
        """
        return bytes(self._requests.read(url, start, stop, size_bytes, apart=apart))

    def read_many(self, url: str, ranges: Iterable[tuple[int, int]], size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a file's ranges (start, stop) in their order, by parallel requests.

        Each yielded buffer has at most 4 MiB, so a longer range comes in several. A request that takes much longer than
        the others is made a second time.
        """
        return self._requests.read_many(url, ranges, size_bytes)

    def write(self, url: str, content: bytes) -> None:
        """Write a whole file.

        Raises:
            OSError: If the server refuses the request, or cannot be reached.
        """
        self._requests.write(url, content)

    def open_ranges(self, url: str, size_bytes: int) -> BinaryIO:
        """Open a file whose reads are range requests. Opening makes no request."""
        return RangeFile(url, size_bytes, self._requests)

    def open(
        self, url: str, found: Stat | None = None, *, checksum: str = "", data_bytes: int = 0, whole: bool = False
    ) -> BinaryIO:
        """Open a file to read bytes: a local copy if the cache has room, else a file whose reads are range requests.

        Args:
            url: URL of the file.
            found: The version that the file must still have; None for any.
            checksum: The BLAKE2b checksum (32 hexadecimal digits) that a downloaded file must have; empty for any.
            data_bytes: Size of the dataset that the file belongs to; 0 if it is unknown.
            whole: If there is a cache, always open a local copy, even if copies in use must be removed for it.

        Raises:
            ValueError: If the file has changed, has another checksum, or is larger than the cache with `whole`.
            OSError: If the file cannot be read, or the disk is full.
        """
        if self.cache_dir is not None:
            wanted = found or self.stat(url)
            if whole and wanted.size_bytes > self.cache_bytes:
                raise ValueError(
                    f"{url}: has {wanted.size_bytes:,} bytes, the cache holds {self.cache_bytes:,}. "
                    "Give Storage a larger cache_bytes, or read without a cache: cache_dir=None."
                )
            copy = self._copy(self.cache_dir, url, wanted, checksum, data_bytes)
            if (file := copy.find_counted() or copy.open(whole=whole)) is not None:
                return file
        now = self.stat(url)
        refuse_change(url, now, found)
        return self.open_ranges(url, now.size_bytes)

    def open_soon(
        self, url: str, found: Stat, *, checksum: str = "", data_bytes: int = 0, arrival: Arrival | None = None
    ) -> BinaryIO:
        """As `open`, but return before the download is complete.

        The first read uses range requests; later ones wait for the local copy. All reads wait for a small file, and for
        one that is being downloaded. If `fetch` has begun the download, pass what it returned as `arrival`.
        """
        if self.cache_dir is None:
            return self.open(url, found)
        copy = self._copy(self.cache_dir, url, found, checksum, data_bytes)
        if (file := copy.find_counted()) is not None:
            if arrival is not None:
                arrival.close()
            return file
        waits = arrival is not None or self.is_small(found) or copy.is_arriving
        return ArrivingFile(copy, arrival or Arrival(copy), waits=waits)

    def fetch(self, url: str, found: Stat, *, checksum: str = "", data_bytes: int = 0) -> Arrival | None:
        """Begin to download a file in the background; None without a cache.

        The cache does not evict the copy until the returned `Arrival` is closed.
        """
        if self.cache_dir is None:
            return None
        arrival = Arrival(self._copy(self.cache_dir, url, found, checksum, data_bytes))
        arrival.begin()
        return arrival

    @staticmethod
    def is_small(found: Stat) -> bool:
        """Return whether the first read of a file that `open_soon` opens waits for its download."""
        return found.size_bytes < _SOON_BYTES

    def has_copy(self, url: str, found: Stat) -> bool:
        """Return whether the cache has a complete copy of a file's version."""
        return self.cache_dir is not None and self._copy(self.cache_dir, url, found).is_there

    def open_made(
        self, place: str, found: Stat, size_bytes: int, make: Callable[[], bytes], *, data_bytes: int = 0
    ) -> BinaryIO:
        """Open content made from a file, such as a decompressed shard: from the cache, else from memory.

        Args:
            place: URL or path of the file.
            found: The file's version.
            size_bytes: Size of the content.
            make: Makes the content, if the cache does not have it.
            data_bytes: Size of the dataset that the content belongs to; 0 if it is unknown.
        """
        file = None
        if self.cache_dir is not None:
            copy = self._copy(self.cache_dir, _made(place), found, data_bytes=data_bytes)
            file = copy.open_made(size_bytes, make)
        return io.BytesIO(make()) if file is None else file

    def has_made(self, place: str, found: Stat) -> bool:
        """Return whether the cache has the content that `open_made` would open."""
        return self.has_copy(_made(place), found)

    def _copy(
        self,
        folder: str | os.PathLike[str],
        url: str,
        found: Stat,
        checksum: str = "",
        data_bytes: int = 0,
    ) -> "Copy":
        from loaderkit.files.cache import Cache  # needs fcntl, which some systems lack
        from loaderkit.files.copies import Copy

        cache = Cache(Path(folder).expanduser(), self.cache_bytes, data_bytes)
        return Copy(url=url, found=found, cache=cache, requests=self._requests, checksum=checksum)


def _made(place: str) -> str:
    """Return the cache's name for the content made from a file."""
    return f"{place}#made"
