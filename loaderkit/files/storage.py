"""The settings of remote files: how they are reached, and where copies of them are kept."""

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
from loaderkit.system.retry import Retry
from loaderkit.system.shared_counts import SharedCounts

if TYPE_CHECKING:
    from loaderkit.files.copies import Copy

_SOON_BYTES = 8 << 20  # smaller files are waited for


@dataclass(frozen=True, slots=True)
class Storage:
    """How to reach remote shards, and where to keep copies of them.

    Shards are downloaded as a whole by parallel requests, once for all processes of a host that share the folder. To make room,
    the cache removes copies that nobody has open: first those of other folders, then those that were opened last. If all
    copies are in use, a shard is read by ranges. Requests that fail with a passing error are repeated. Of requests that are made
    side by side, one that takes much longer than the others is made once more.

    Args:
        options: Options of the file system, as fsspec takes them: `{"key": ..., "secret": ..., "endpoint_url": ...}` for
            S3, `{"headers": {...}}` for HTTP.
        cache_dir: Folder of the copies; None reads byte ranges and keeps no copies.
        cache_bytes: Limit for the size of all copies. Files that are mapped into memory (tokens, `.npy`) must be whole: if
            all copies are in use, they exceed it by what is in use.
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
        """Return the version that a file has now.

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

        A file has its version where the listing gave it: that saves a request for each. `marks` gets the paths in a folder that
        may be marks of other formats, see `find_marks`.
        """
        return self._requests.find(url, suffixes, [] if marks is None else marks)

    def read(self, url: str, start: int, stop: int, size_bytes: int | None = None, *, apart: bool = False) -> bytes:
        """Return a range of bytes of a file; fewer if its size is unknown, and the file ends before.

        A file of unknown size is an index or the like, which is read before workers are forked: by fsspec, or `apart`, in a process of
        its own.
        """
        return bytes(self._requests.read(url, start, stop, size_bytes, apart=apart))

    def read_many(self, url: str, ranges: Iterable[tuple[int, int]], size_bytes: int) -> Iterator[bytes]:
        """Return ranges of bytes of a file in their order, as buffers, by parallel requests of at most 4 MiB each.

        A request that takes much longer than the others is made once more.
        """
        return self._requests.read_many(url, ranges, size_bytes)

    def write(self, url: str, content: bytes) -> None:
        """Write a file as a whole.

        Raises:
            OSError: If the server refuses it, or cannot be written to.
        """
        self._requests.write(url, content)

    def open_ranges(self, url: str, size_bytes: int) -> BinaryIO:
        """Open a file that requests the ranges that are read. No request is made before."""
        return RangeFile(url, size_bytes, self._requests)

    def open(
        self, url: str, found: Stat | None = None, *, checksum: str = "", data_bytes: int = 0, whole: bool = False
    ) -> BinaryIO:
        """Open a file to read bytes: a local copy if there is room in the cache, else a file that requests ranges.

        Args:
            url: URL of the file.
            found: The version that the file must still have.
            checksum: The BLAKE2b checksum (32 hexadecimal digits) that a downloaded file must have; empty for any.
            data_bytes: Size of the data that the file belongs to; 0 if it is unknown.
            whole: Open a local copy if there is a cache, also if that removes copies that are in use.

        Raises:
            ValueError: If the file has changed, has another checksum, or must be whole and is larger than the cache.
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
        """Open a file of that version: as `open`, but do not wait for a download that is needed first.

        The first spans that are read are requested by ranges; later ones wait for the copy. If `fetch` has begun the
        download, all spans wait for its `arrival`.
        """
        if self.cache_dir is None:
            return self.open(url, found)
        copy = self._copy(self.cache_dir, url, found, checksum, data_bytes)
        if (file := copy.find_counted()) is not None:
            if arrival is not None:
                arrival.close()
            return file
        waits = arrival is not None or found.size_bytes < _SOON_BYTES
        return ArrivingFile(copy, arrival or Arrival(copy), waits=waits)

    def fetch(self, url: str, found: Stat, *, checksum: str = "", data_bytes: int = 0) -> Arrival | None:
        """Begin to download a file of that version in the background, if there is a cache. The copy stays until it is closed."""
        if self.cache_dir is None:
            return None
        arrival = Arrival(self._copy(self.cache_dir, url, found, checksum, data_bytes))
        arrival.begin()
        return arrival

    def has_copy(self, url: str, found: Stat) -> bool:
        """Return whether the cache has a whole copy of that version."""
        return self.cache_dir is not None and self._copy(self.cache_dir, url, found).is_there

    def open_made(
        self, place: str, found: Stat, size_bytes: int, make: Callable[[], bytes], *, data_bytes: int = 0
    ) -> BinaryIO:
        """Open content that is made from a file, such as what is packed in it: from the cache, else from memory.

        Args:
            place: URL or path of the file.
            found: Its version.
            size_bytes: Size of the content.
            make: Makes the content, unless the cache has it.
            data_bytes: Size of the data that it belongs to; 0 if it is unknown.
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
    """Return the name of what is made from a file."""
    return f"{place}#made"
