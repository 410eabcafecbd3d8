"""What a store of remote files can do, and which store answers for a URL."""

from collections.abc import Mapping
from typing import Any, Protocol

from loaderkit.files.fsspec_store import FsspecStore
from loaderkit.files.listing import Entry, Stat, Wanted
from loaderkit.files.obstore_settings import STORES
from loaderkit.files.obstore_store import ObstoreStore


class Store(Protocol):
    """The files of a server or bucket. Each call is one attempt, whose errors are those of the library."""

    def info(self, url: str) -> Stat | None:
        """Return the version that a file has now; None if the server gives no size."""

    def list(self, wanted: Wanted) -> dict[str, Entry]:
        """Return the file at a URL, all files in that folder, or the matches of a glob, by URL."""

    def get(self, url: str, start: int, stop: int, *, early: bool = False, apart: bool = False) -> bytes:
        """Return a range of a file as a buffer: all of the file if the server ignores ranges, less if the file ends before.

        Args:
            url: URL of the file.
            start: First byte.
            stop: Byte after the last one.
            early: Leave alone what does not survive a fork: workers may be forked later.
            apart: Of an early request, a program of its own may make it.
        """

    def put(self, url: str, content: bytes) -> None:
        """Write a file as a whole."""


def root_of(url: str) -> str:
    """Return the scheme and the server, bucket or container of a URL: the files that one store has."""
    scheme, _, path = url.partition("://")
    return f"{scheme}://{path.partition('/')[0]}"


def choose_store(url: str, options: Mapping[str, Any], timeout_s: float) -> Store:
    """Return the store of a URL.

    Args:
        url: A URL.
        options: Options of its file system, as fsspec takes them.
        timeout_s: Time limit of one request.
    """
    by_fsspec = FsspecStore(options, timeout_s)
    scheme, _, container = root_of(url).partition("://")
    return ObstoreStore(scheme, container, by_fsspec) if scheme in STORES else by_fsspec
