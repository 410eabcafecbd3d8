"""The local copy of a remote file, made on demand."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from loaderkit.files.cache import Cache, Part
from loaderkit.files.listing import Stat, refuse_change
from loaderkit.files.requests import Requests

Turn = Callable[[], AbstractContextManager[Callable[[], None]]]  # as `Arrival._turn`


@contextmanager
def _at_once() -> Iterator[Callable[[], None]]:
    yield lambda: None


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """The copy of one version of a file in this host's cache, whether or not it has been made yet.

    Args:
        url: URL of the file, or a name for content made from it (see `open_made`).
        found: The file's version.
        cache: The cache that holds the copies.
        requests: Downloads the file.
        checksum: The BLAKE2b checksum (32 hexadecimal digits) that the file must have; empty for any.
    """

    url: str
    found: Stat
    cache: Cache
    requests: Requests
    checksum: str = ""

    @property
    def key(self) -> str:
        """The copy's key in the cache (32 hexadecimal digits), from the URL, the endpoint and the file's version."""
        options = self.requests.options
        client = options.get("client_kwargs") or {}
        endpoint = str(options.get("endpoint_url") or client.get("endpoint_url") or "")
        version = self.found.etag or self.found.changed_ns
        folder = json.dumps([self.url.rpartition("/")[0], endpoint])  # names the data
        named = json.dumps([self.url, endpoint, self.found.size_bytes, version])
        digests = (
            hashlib.blake2b(text.encode(), digest_size=size).hexdigest() for text, size in ((folder, 4), (named, 12))
        )
        return "".join(digests)

    @property
    def is_there(self) -> bool:
        """Whether the cache has the copy."""
        return self.cache.has(self.key)

    @property
    def is_arriving(self) -> bool:
        """Whether a process of this host downloads the copy."""
        return self.cache.is_arriving(self.key)

    def find(self) -> BinaryIO | None:
        """Open the copy; None if the cache does not have it."""
        return self.cache.find(self.key, self.found.size_bytes)

    def find_counted(self) -> BinaryIO | None:
        """As `find`, and count the attempt ("opened") and a success ("hits")."""
        file = self.find()
        self.requests.counts.add("opened", 1)
        if file is not None:
            self.requests.counts.add("hits", 1)
        return file

    def open(self, *, whole: bool = False, turn: Turn = _at_once) -> BinaryIO | None:
        """Open the copy, and download it first if the cache lacks it; None if there is no room.

        Args:
            whole: Make room even by removing copies that are in use.
            turn: Waits until the download may begin. It is entered when other processes see that this one downloads.

        Raises:
            ValueError: If the file has changed, or has another checksum.
            OSError: If the file cannot be read, or the disk is full.
        """
        if self.found.size_bytes > self.cache.size_bytes:
            return None
        try:
            with self.cache.reserve(self.key, self.found.size_bytes, at_any_cost=whole) as part:
                if isinstance(part, Part):
                    self._download(part.file, turn)
                    return part.open()
                return part
        except OSError as error:
            if self.url not in str(error):
                error.add_note(f"loaderkit: raised while downloading {self.url}.")
            raise

    def open_made(self, size_bytes: int, make: Callable[[], bytes]) -> BinaryIO | None:
        """As `open`, but the content comes from `make` instead of a download, and has `size_bytes` bytes."""
        if size_bytes > self.cache.size_bytes:
            return None
        with self.cache.reserve(self.key, size_bytes) as part:
            if isinstance(part, Part):
                part.file.write(make())
                return part.open()
            return part

    def refuse_change(self) -> None:
        """Raise a ValueError if the file's version is no longer `found`."""
        refuse_change(self.url, self.requests.stat(self.url), self.found)

    def _download(self, file: BinaryIO, turn: Turn) -> None:
        with turn() as has_come:
            content = self.requests.download(self.url, self.found.size_bytes, file, has_come)
        if not self.checksum:
            self.refuse_change()  # also finds a change during the download
        elif content != self.checksum:
            raise ValueError(
                f"{self.url}: has the checksum {content}, its folder's index has {self.checksum}. Upload the shard again, or run "
                "`loaderkit index --folder-index` on its folder."
            )
