"""The interface of a store of remote files, and the choice of a store for a URL."""

from collections.abc import Mapping
from typing import Any, Protocol

from loaderkit.files.fsspec_store import FsspecStore
from loaderkit.files.listing import Entry, Stat, Wanted
from loaderkit.files.obstore_settings import STORES
from loaderkit.files.obstore_store import ObstoreStore


class Store(Protocol):
    """Access to the files of a server or bucket. Each call is one attempt, and raises its library's own errors."""

    def info(self, url: str) -> Stat | None:
        """Return a file's current version; None if the server gives no size."""

    def list(self, wanted: Wanted) -> dict[str, Entry]:
        """Return the file at a URL, all files in that folder, or the matches of a glob, by URL."""

    def get(self, url: str, start: int, stop: int, *, early: bool = False, apart: bool = False) -> bytes:
        """Return a file's bytes from `start` to before `stop`, as a buffer.

        It has the whole file if the server ignores ranges, and fewer bytes if the file ends before `stop`.

        Args:
            url: URL of the file.
            start: First byte.
            stop: Byte after the last one.
            early: Whether workers may be forked later: use no library that does not survive a fork.
            apart: Whether a separate program may make an early request.
        """

    def put(self, url: str, content: bytes) -> None:
        """Write a whole file."""


def root_of(url: str) -> str:
    """Return the scheme and the server, bucket or container of a URL. One store serves all URLs with the same root."""
    scheme, _, path = url.partition("://")
    return f"{scheme}://{path.partition('/')[0]}"


def choose_store(url: str, options: Mapping[str, Any], timeout_s: float) -> Store:
    """Return the store of a URL.

    Args:
        url: A URL.
        options: Options of the URL's file system, as fsspec takes them.
        timeout_s: Time limit of one request.
    """
    by_fsspec = FsspecStore(options, timeout_s)
    scheme, _, container = root_of(url).partition("://")
    return ObstoreStore(scheme, container, by_fsspec) if scheme in STORES else by_fsspec
