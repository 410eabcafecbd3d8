"""Remote shards through fsspec: their sizes and versions, and their bytes from a local cache or by ranges."""

import asyncio
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

from loaderkit.files.arriving import Arrival, ArrivingFile
from loaderkit.files.listing import Stat, matching, refuse_change, shown, stat_of, with_stats
from loaderkit.files.object_stores import google_filesystem
from loaderkit.files.objects import in_worker, list_objects, read_apart, read_range
from loaderkit.files.ranges import BLOCK, RangeFile
from loaderkit.system.parallel import map_waiting
from loaderkit.system.retry import Retry, TransientError, http_status
from loaderkit.system.shared_counts import SharedCounts

if TYPE_CHECKING:
    from loaderkit.files.cache import Cache

T = TypeVar("T")

REQUESTS = 16  # at the same time
_CONNECTIONS = 64  # of a process to an S3 server, at most
_SOON_BYTES = 8 << 20  # smaller files are waited for
# File systems are never freed: in a forked process, their finalizers would use the parent's event loop and sockets.
_KEPT: dict[Any, Any] = {}


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

    def __post_init__(self) -> None:
        if self.cache_bytes < 1 or self.timeout_s <= 0:
            raise ValueError(
                f"Storage: cache_bytes is {self.cache_bytes}, timeout_s {self.timeout_s}; wanted at least 1, and more than 0."
            )

    def stat(self, url: str) -> Stat:
        """Return the version that a file has now.

        Raises:
            FileNotFoundError: If the file does not exist.
            PermissionError: If the server refuses access.
            OSError: If the server cannot be reached, or does not know the size.
        """
        info = self._ask(url, lambda: self._run(url, "info"))
        if info.get("size") is None or info.get("type") == "directory":
            raise OSError(
                f"{url}: the server gives no size, which a shard needs. Give the URL of a file, or copy the file."
            )
        return stat_of(info)

    def stat_many(self, urls: Sequence[str]) -> list[Stat]:
        """Return the versions of files, by parallel requests."""
        first = [self.stat(url) for url in urls[:1]]  # opens the session that the other requests share
        return first + list(map_waiting(self.stat, urls[1:], REQUESTS))

    def open_ranges(self, url: str, size_bytes: int) -> BinaryIO:
        """Open a file that requests the ranges that are read. No request is made before."""
        return RangeFile(url, size_bytes, partial(self.read_many, url, size_bytes=size_bytes))

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
            copy = self._find_counted(url, wanted) or self._open_copy(url, wanted, checksum, data_bytes, whole=whole)
            if copy is not None:
                return copy
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
        size = found.size_bytes
        if self.cache_dir is None:
            return self.open(url, found)
        if (copy := self._find_counted(url, found)) is not None:
            if arrival is not None:
                arrival.close()
            return copy
        waits = arrival is not None or size < _SOON_BYTES
        arrival = arrival or self._arrival(url, found, checksum, data_bytes)
        read = partial(self.read_many, url, size_bytes=size)
        return ArrivingFile(url, size, read, arrival, partial(self._find_copy, url, found), waits=waits)

    def fetch(self, url: str, found: Stat, *, checksum: str = "", data_bytes: int = 0) -> Arrival | None:
        """Begin to download a file of that version in the background, if there is a cache. The copy stays until it is closed."""
        if self.cache_dir is None:
            return None
        arrival = self._arrival(url, found, checksum, data_bytes)
        arrival.begin()
        return arrival

    def _arrival(self, url: str, found: Stat, checksum: str, data_bytes: int) -> Arrival:
        def open_copy() -> BinaryIO | None:
            copy = self._open_copy(url, found, checksum, data_bytes)
            if copy is None:  # ranges are read: of what was found?
                refuse_change(url, self.stat(url), found)
            return copy

        return Arrival(url, open_copy)

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
        copy = None
        if self.cache_dir is not None and size_bytes <= self.cache_bytes:
            cache = self._cache(self.cache_dir, data_bytes)
            key = self._key(f"{place}#made", found)
            copy = cache.open_if_room(key, size_bytes, lambda file: _write(file, make()))
        return io.BytesIO(make()) if copy is None else copy

    def has_made(self, place: str, found: Stat) -> bool:
        """Return whether the cache has the content that `open_made` would open."""
        return self.cache_dir is not None and self._cache(self.cache_dir).has(self._key(f"{place}#made", found))

    def has_copy(self, url: str, found: Stat) -> bool:
        """Return whether the cache has a whole copy of that version."""
        return self.cache_dir is not None and self._cache(self.cache_dir).has(self._key(url, found))

    def _find_copy(self, url: str, found: Stat) -> BinaryIO | None:
        """Open the copy of a file if there is one."""
        if self.cache_dir is None:
            return None
        return self._cache(self.cache_dir).find(self._key(url, found), found.size_bytes)

    def _find_counted(self, url: str, found: Stat) -> BinaryIO | None:
        """Open the copy for a reader if there is one, and count whether there is."""
        copy = self._find_copy(url, found)
        self.counts.add("opened", 1)
        if copy is not None:
            self.counts.add("hits", 1)
        return copy

    def _open_copy(
        self, url: str, found: Stat, checksum: str, data_bytes: int, *, whole: bool = False
    ) -> BinaryIO | None:
        """Open the copy of a file, which is downloaded first if there is none; None if there is no room for it."""
        if self.cache_dir is None or found.size_bytes > self.cache_bytes:
            return None

        def download(file: BinaryIO) -> None:
            content = self._download(url, found.size_bytes, file)
            if checksum and content != checksum:
                raise ValueError(
                    f"{url}: has the checksum {content}, its folder's index has {checksum}. Upload the shard again, or run "
                    "`loaderkit index --folder-index` on its folder."
                )
            if not checksum:
                refuse_change(url, self.stat(url), found)  # a change during the download, too

        cache = self._cache(self.cache_dir, data_bytes)
        try:
            return (cache.open if whole else cache.open_if_room)(self._key(url, found), found.size_bytes, download)
        except OSError as error:
            if url not in str(error):
                error.add_note(f"loaderkit: raised while downloading {url}.")
            raise

    def _cache(self, folder: str | os.PathLike[str], data_bytes: int = 0) -> "Cache":
        from loaderkit.files.cache import Cache  # needs fcntl, which some systems lack

        return Cache(Path(folder).expanduser(), self.cache_bytes, data_bytes)

    def read(self, url: str, start: int, stop: int, size_bytes: int, *, or_all: bool = False) -> bytes:
        """Return a range of bytes; with `or_all`, the whole file if the server ignores ranges."""
        return bytes(self._read(url, start, stop, size_bytes, or_all=or_all))

    def _read(self, url: str, start: int, stop: int, size_bytes: int, *, or_all: bool = False) -> bytes:
        """As `read`, but without a copy: the bytes may be obstore's buffer."""
        wanted = stop - start

        def get() -> bytes:
            content = self._fetch_bytes(url, start, stop)
            if len(content) == size_bytes > wanted:  # the server ignores ranges
                return content if or_all else content[start:stop]
            if len(content) != wanted:
                raise TransientError(f"got {len(content):,} bytes, wanted {wanted:,}")
            return content

        return self._ask(url, get, f"bytes {start:,} to {stop:,} of {size_bytes:,}")

    def read_many(self, url: str, ranges: Iterable[tuple[int, int]], size_bytes: int) -> Iterator[bytes]:
        """Return ranges of bytes of a file in their order, as buffers, by parallel requests of at most 4 MiB each.

        A request that takes much longer than the others is made once more.
        """
        parts = ((at, min(at + BLOCK, stop)) for start, stop in ranges for at in range(start, stop, BLOCK))
        return map_waiting(lambda part: self._read(url, *part, size_bytes), parts, REQUESTS, hedge=True)

    def read_some(self, url: str, start: int, stop: int, *, apart: bool = False) -> bytes:
        """Return a range of bytes of a file whose size is unknown; fewer if the file ends before.

        This reads indexes before workers are forked. So obstore reads in a worker, or `apart`, in a process of its own; else fsspec.
        """

        def get() -> bytes:
            content = None
            if in_worker():
                content = self._read_by_obstore(url, start, stop)
            elif apart:
                content = read_apart(url, start, stop, self.options, self.timeout_s)
            content = bytes(self._run(url, "cat_file", start=start, end=stop) if content is None else content)
            self.counts.add("bytes", len(content))
            return content[start:stop] if len(content) > stop - start else content  # some servers ignore ranges

        return self._ask(url, get, f"bytes {start:,} to {stop:,}")

    def write(self, url: str, content: bytes) -> None:
        """Write a file as a whole.

        Raises:
            OSError: If the server refuses it, or cannot be written to.
        """
        self._ask(url, lambda: self._run(url, "pipe_file", content))

    def find(self, url: str, suffixes: Sequence[str], marks: list[str] | None = None) -> dict[str, Stat | None]:
        """Return the files at a URL: one file, the matches of a glob, or the files of a folder with one of the suffixes.

        A file has its version where the listing gave it: that saves a request for each. `marks` gets the paths in a folder that
        may be marks of other formats, see `find_marks`.
        """
        marks = [] if marks is None else marks
        web = url.startswith(("http://", "https://"))
        rest = url.partition("://")[2]
        is_glob = any(sign in (rest.partition("/")[2] if web else rest) for sign in ("*[" if web else "*?["))
        if found := self._find_objects(url, tuple(suffixes), marks):
            return found
        ways = (self._find_page, self._glob_page) if web else (self._find, self._glob)
        return self._ask(url, lambda: ways[is_glob](*self._filesystem(url), url, tuple(suffixes), marks))

    def _find_objects(self, url: str, suffixes: tuple[str, ...], marks: list[str]) -> dict[str, Stat | None]:
        """Return the objects in a folder, or those that match a glob, if obstore can list them; else nothing."""
        folder, _, name = url.rpartition("/")
        is_glob = any(sign in name for sign in "*?[")
        if any(sign in folder for sign in "*?[") or "**" in name or not (is_glob or url.endswith("/")):
            return {}
        folder = folder.rstrip("/")
        listed = list_objects(folder, self.options, self.timeout_s, recursive=not is_glob)
        if listed is None:
            return {}
        root = folder.partition("://")[2] + "/"
        found = {info["name"]: info for info in listed if info["name"].startswith(root)}
        found = matching(found, name) if is_glob else shown(found, root, suffixes, marks)
        return {f"s3://{name}": stat_of(info) for name, info in found.items()}

    def _glob(
        self, files: Any, path: str, url: str, suffixes: tuple[str, ...], marks: list[str]
    ) -> dict[str, Stat | None]:
        folder, _, name = path.rpartition("/")
        if any(sign in folder for sign in "*?[") or "**" in name:
            return with_stats(files, files.glob(path, detail=True))
        try:  # one listing: fsspec's glob makes several requests
            inside = files.ls(folder, detail=True)
        except FileNotFoundError as error:
            if error.__cause__ is not None and not isinstance(error.__cause__, KeyError):
                raise
            return {}
        found = {str(info["name"]): info for info in inside if info.get("type") != "directory"}
        return with_stats(files, matching(found, name))

    def _find(
        self, files: Any, path: str, url: str, suffixes: tuple[str, ...], marks: list[str]
    ) -> dict[str, Stat | None]:
        found = files.find(path.rstrip("/"), detail=True)
        if list(found) == [path]:
            known = isinstance(found, Mapping)  # adlfs lists a single file without its version
            return {url: stat_of(found[path]) if known else None}
        return with_stats(files, shown(found, path.rstrip("/") + "/", suffixes, marks))

    def _glob_page(
        self, files: Any, path: str, url: str, suffixes: tuple[str, ...], marks: list[str]
    ) -> dict[str, Stat | None]:
        return with_stats(files, files.glob(path, detail=True))

    def _find_page(
        self, files: Any, path: str, url: str, suffixes: tuple[str, ...], marks: list[str]
    ) -> dict[str, Stat | None]:
        try:
            info = self._run(url, "info")
        except FileNotFoundError as error:
            if error.__cause__ is not None:  # fsspec raises it for every failure of a web server
                raise
            info = {"type": "none"}
        # A folder is a page whose address ends with a slash.
        if info["type"] == "file" and not str(info.get("url", "")).endswith("/"):
            return {url: stat_of(info)}
        root = path.rstrip("/") + "/"
        return with_stats(files, shown(files.find(root, detail=True), root, suffixes, marks))

    def _download(self, url: str, size_bytes: int, file: BinaryIO) -> str:
        """Copy a file, and return its checksum."""
        found, at = hashlib.blake2b(digest_size=16), 0
        if (
            url.startswith(("http://", "https://")) and size_bytes
        ):  # it may ignore ranges, and answer with the whole file
            content = self.read(url, 0, min(BLOCK, size_bytes), size_bytes, or_all=True)
            file.write(content)
            found.update(content)
            at = len(content)
        for content in self.read_many(url, [(at, size_bytes)], size_bytes):
            file.write(content)
            found.update(content)
        return found.hexdigest()

    def _key(self, url: str, found: Stat) -> str:
        client = self.options.get("client_kwargs") or {}
        endpoint = self.options.get("endpoint_url") or client.get("endpoint_url") or ""
        version = found.etag or found.changed_ns
        folder = json.dumps([url.rpartition("/")[0], str(endpoint)])  # names the data
        named = json.dumps([url, str(endpoint), found.size_bytes, version])
        digests = (
            hashlib.blake2b(text.encode(), digest_size=size).hexdigest() for text, size in ((folder, 4), (named, 12))
        )
        return "".join(digests)

    def _filesystem(self, url: str) -> tuple[Any, str]:
        try:
            import fsspec
        except ImportError as error:
            raise ImportError(
                f"{url!r} is remote, which needs fsspec: pip install '.[remote]' in a checkout of loaderkit."
            ) from error
        options = {"use_listings_cache": False, **self.options}  # a cached listing hides changes
        if url.startswith(("s3://", "s3a://")):
            # `retry` repeats requests. botocore would too, with waits from Python's generator, which belongs to the samples.
            defaults = {"retries": {"max_attempts": 0}, "max_pool_connections": _CONNECTIONS}
            options["config_kwargs"] = {**defaults, **options.get("config_kwargs", {})}
        if url.startswith(("http://", "https://")):
            # A compressed body has no ranges.
            options["headers"] = {"Accept-Encoding": "identity", **options.get("headers", {})}
        files, path = google_filesystem(url, options) or fsspec.core.url_to_fs(url, **options)
        if not getattr(files, "async_impl", False):
            return _KEPT.setdefault(id(files), files), path
        # One for all threads: they share an event loop, and fsspec 2024.6 would open a session for each.
        key = os.getpid(), type(files), fsspec.utils.tokenize(files.storage_options)
        return _KEPT.setdefault(key, files), path

    def _ask(self, url: str, call: Callable[[], T], what: str = "") -> T:
        try:
            return self.retry.call(call, what=url)
        except (ImportError, NotImplementedError):
            raise
        except Exception as error:
            _raise_named(error, f"{url}: {what}: " if what else f"{url}: ")

    def _fetch_bytes(self, url: str, start: int, stop: int) -> bytes:
        content: bytes | None = self._read_by_obstore(url, start, stop)
        if content is None:
            content = self._run(url, "cat_file", start=start, end=stop)
        self.counts.add("bytes", len(content))
        return content

    def _read_by_obstore(self, url: str, start: int, stop: int) -> Any:
        return read_range(url, start, stop, self.options, self.timeout_s, lambda: self._filesystem(url)[0])

    def _run(self, url: str, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the file system of a URL, for the path in it."""
        files, path = self._filesystem(url)
        if not getattr(files, "async_impl", False):
            return getattr(files, name)(path, *arguments, **keywords)
        from fsspec.asyn import sync

        async def within() -> Any:
            try:
                return await asyncio.wait_for(getattr(files, f"_{name}")(path, *arguments, **keywords), self.timeout_s)
            except TimeoutError as error:
                raise TransientError(f"no answer within {self.timeout_s:g} s") from error

        return sync(files.loop, within)


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


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
    # fsspec raises FileNotFoundError for every failure of a web server; in memory, a KeyError is its cause.
    if status in (404, 410) or (
        isinstance(error, FileNotFoundError) and (cause is error or isinstance(cause, KeyError))
    ):
        raise FileNotFoundError(f"{place}is not there: {text}.") from error
    raise OSError(f"{place}can't be read: {text}") from error
