"""Requests for remote files: parallel, counted, repeated after transient errors; other errors name the URL."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn, TypeVar

from loaderkit.files.listing import Stat, Wanted
from loaderkit.files.store import Store, choose_store, root_of
from loaderkit.system.parallel import map_waiting
from loaderkit.system.retry import Retry, TransientError, http_status
from loaderkit.system.shared_counts import SharedCounts

T = TypeVar("T")

REQUESTS = 16  # at the same time
BLOCK = 1 << 22  # most bytes of one request


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """Makes the requests for files of any URL. One store is kept for each server or bucket.

    Args:
        options: Options of the file systems, as fsspec takes them.
        retry: How often and how long to repeat a request.
        timeout_s: Time limit of one request.
        counts: Counts the received bytes as "bytes".
    """

    options: Mapping[str, Any] = field(repr=False)  # it may hold secrets
    retry: Retry
    timeout_s: float
    counts: SharedCounts = field(compare=False)
    _stores: dict[str, Store] = field(default_factory=dict, init=False, repr=False, compare=False)

    def stat(self, url: str) -> Stat:
        """Return a file's current version.

        Raises:
            FileNotFoundError: If the file does not exist.
            PermissionError: If the server refuses access.
            OSError: If the server cannot be reached, or does not know the size.
        """
        found = self._ask(url, lambda store: store.info(url))
        if found is None:
            raise OSError(
                f"{url}: the server gives no size, which a shard needs. Give the URL of a file, or copy the file."
            )
        return found

    def stat_many(self, urls: Sequence[str]) -> list[Stat]:
        """Return the versions of files, by parallel requests."""
        first = [self.stat(url) for url in urls[:1]]  # opens the session that the other requests share
        return first + list(map_waiting(self.stat, urls[1:], REQUESTS))

    def find(self, url: str, suffixes: Sequence[str], marks: list[str]) -> dict[str, Stat | None]:
        """Return the versions of the files that a URL names, by URL; see `Wanted.chosen`."""
        wanted = Wanted(url)
        return wanted.chosen(self._ask(url, lambda store: store.list(wanted)), suffixes, marks)

    def write(self, url: str, content: bytes) -> None:
        """Write a whole file.

        Raises:
            OSError: If the server refuses the request, or cannot be reached.
        """
        self._ask(url, lambda store: store.put(url, content))

    def read(
        self,
        url: str,
        start: int,
        stop: int,
        size_bytes: int | None = None,
        *,
        apart: bool = False,
        or_all: bool = False,
    ) -> bytes:
        """Return a file's bytes from `start` to before `stop`, as a buffer.

        Args:
            url: URL of the file.
            start: First byte.
            stop: Byte after the last one.
            size_bytes: Size of the file. With None, the file may end before `stop`. None is for small files such as an
                index, which are read before workers are forked.
            apart: Whether a separate program may read a file of unknown size.
            or_all: Return the whole file if the server ignores ranges.
        """

        def get(store: Store) -> bytes:
            content = store.get(url, start, stop, early=size_bytes is None, apart=apart)
            found, wanted = len(content), stop - start
            self.counts.add("bytes", found)
            if found > wanted and size_bytes in (None, found):  # the server ignores ranges
                return content if or_all else content[start:stop]
            if found != wanted and size_bytes is not None:
                raise TransientError(f"got {found:,} bytes, wanted {wanted:,}")
            return content

        of_all = "" if size_bytes is None else f" of {size_bytes:,}"
        return self._ask(url, get, f"bytes {start:,} to {stop:,}{of_all}")

    def read_many(self, url: str, ranges: Iterable[tuple[int, int]], size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a file's ranges (start, stop) in their order, by parallel requests.

        Each yielded buffer has at most 4 MiB, so a longer range comes in several. A request that takes much longer than
        the others is made a second time.
        """
        parts = ((at, min(at + BLOCK, stop)) for start, stop in ranges for at in range(start, stop, BLOCK))
        return map_waiting(lambda part: self.read(url, *part, size_bytes), parts, REQUESTS, hedge=True)

    def download(self, url: str, size_bytes: int, file: BinaryIO, has_come: Callable[[], object]) -> str:
        """Download a remote file into an open one, and call `has_come` after each request's bytes.

        Return the file's BLAKE2b checksum (32 hexadecimal digits).
        """
        found, at = hashlib.blake2b(digest_size=16), 0
        if url.startswith(("http://", "https://")) and size_bytes:
            # The server may ignore ranges, and answer with the whole file.
            content = self.read(url, 0, min(BLOCK, size_bytes), size_bytes, or_all=True)
            file.write(content)
            found.update(content)
            at = len(content)
            has_come()
        for content in self.read_many(url, [(at, size_bytes)], size_bytes):
            file.write(content)
            found.update(content)
            has_come()
        return found.hexdigest()

    def _ask(self, url: str, call: Callable[[Store], T], what: str = "") -> T:
        """Return what `call` gets from the URL's store, with retries. Errors name the URL and `what` was requested."""
        root = root_of(url)
        store = self._stores.get(root)
        if store is None:
            store = self._stores.setdefault(root, choose_store(url, self.options, self.timeout_s))
        try:
            return self.retry.call(lambda: call(store), what=url)
        except (ImportError, NotImplementedError):
            raise
        except Exception as error:
            _raise_named(error, f"{url}: {what}: " if what else f"{url}: ")


def _raise_named(error: Exception, place: str) -> NoReturn:
    """Raise the error again with the URL and the message of its first cause."""
    notes = " ".join(note.removeprefix("loaderkit: ") for note in getattr(error, "__notes__", ()))
    cause: BaseException = error
    while cause.__cause__ is not None and http_status(cause) is None and not isinstance(cause, TransientError):
        cause = cause.__cause__
    status = http_status(cause)
    text = " ".join(f"{type(cause).__name__}: {cause} {notes}".split())
    forbidden = text.startswith("OSError: Forbidden: ")  # gcsfs gives no status 403
    refused = status in (401, 403) if status else forbidden or isinstance(error, PermissionError)
    if refused or type(cause).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        raise PermissionError(f"{place}access is refused: {text}. Pass credentials as Storage(options).") from error
    # fsspec raises FileNotFoundError for every failure of a web server, and in memory with a KeyError as its cause.
    if status in (404, 410) or (
        isinstance(error, FileNotFoundError) and (cause is error or isinstance(cause, KeyError))
    ):
        raise FileNotFoundError(f"{place}is not there: {text}.") from error
    raise OSError(f"{place}can't be read: {text}") from error
