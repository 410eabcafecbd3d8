"""Files of any URL through fsspec's file systems."""

import asyncio
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loaderkit.files.listing import Entry, Stat, Wanted, stat_of
from loaderkit.system.retry import TransientError

_CONNECTIONS = 64  # at most, of a process to an S3 server
_WAITS = random.Random()  # gcsfs draws its waits between retries from it
# File systems are never freed: in a forked process, their finalizers would use the parent's event loop and sockets.
_KEPT: dict[object, Any] = {}


def _forget_loop() -> None:
    """Let a forked process start an event loop of its own. fsspec does so since 2025.5; before, its first request hangs."""
    asyn: Any = sys.modules.get("fsspec.asyn")
    if asyn is not None and not hasattr(asyn, "reset_after_fork"):
        asyn.reset_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop)


@dataclass(frozen=True, slots=True)
class FsspecStore:
    """Reads, writes and lists files of any URL that fsspec knows.

    Args:
        options: Options of the file system, as fsspec takes them.
        timeout_s: Time limit of one request.
    """

    options: Mapping[str, Any]
    timeout_s: float

    def info(self, url: str) -> Stat | None:
        """Return the version of a file; None if the server gives no size."""
        return _stat_in(self._call(url, "info"))

    def get(self, url: str, start: int, stop: int, *, early: bool = False, apart: bool = False) -> bytes:
        """Return a range of a file."""
        content: bytes = self._call(url, "cat_file", start=start, end=stop)
        return content

    def put(self, url: str, content: bytes) -> None:
        """Write a file as a whole."""
        self._call(url, "pipe_file", content)

    def list(self, wanted: Wanted) -> dict[str, Entry]:
        """Return the file at a URL, all files in that folder, or the matches of a glob."""
        files, path = self.filesystem(wanted.url)
        if wanted.is_flat:
            found = wanted.matching(_ls(files, path.rpartition("/")[0]))
        elif wanted.is_glob:
            found = files.glob(path, detail=True)
        else:
            # On the web, a folder's URL ends with a slash. Any other page is a file; listing it would download it.
            page = self._info_of_page(wanted.url) if wanted.is_web else None
            if page is not None and not str(page.get("url", "")).endswith("/"):
                return {wanted.url: Entry("", _stat_in(page))}
            found = files.find(path.rstrip("/") + ("/" if wanted.is_web else ""), detail=True)
            if list(found) == [path] and not wanted.is_web:
                known = isinstance(found, Mapping)  # adlfs lists a single file without size and time
                return {wanted.url: Entry("", stat_of(found[path]) if known else None)}
        root = path.rstrip("/") + "/"
        return {
            str(files.unstrip_protocol(name)): Entry(name.removeprefix(root), _stat_in(info))
            for name, info in found.items()
        }

    def filesystem(self, url: str) -> tuple[Any, str]:
        """Return the file system of a URL, and the path in it.

        Raises:
            ImportError: If fsspec is not installed.
        """
        try:
            import fsspec
        except ImportError as error:
            raise ImportError(
                f"{url!r} is remote, which needs fsspec: pip install '.[remote]' in a checkout of loaderkit."
            ) from error
        options = {"use_listings_cache": False, **self.options}  # a cached listing hides changes
        if url.startswith(("s3://", "s3a://")):
            # `Retry` repeats requests. botocore would too, with waits from Python's generator, which belongs to the samples.
            defaults = {"retries": {"max_attempts": 0}, "max_pool_connections": _CONNECTIONS}
            options["config_kwargs"] = {**defaults, **options.get("config_kwargs", {})}
        if url.startswith(("http://", "https://")):
            # A compressed body has no ranges.
            options["headers"] = {"Accept-Encoding": "identity", **options.get("headers", {})}
        files, path = _google(url, options) or fsspec.core.url_to_fs(url, **options)
        if not getattr(files, "async_impl", False):
            return _KEPT.setdefault(id(files), files), path
        # One for all threads: they share an event loop, and fsspec 2024.6 would open a session for each thread.
        key = os.getpid(), type(files), fsspec.utils.tokenize(files.storage_options)
        return _KEPT.setdefault(key, files), path

    def _info_of_page(self, url: str) -> Mapping[str, object] | None:
        """Return fsspec's info on a page of a web server; None if the page does not exist or is no file."""
        try:
            info: Mapping[str, object] = self._call(url, "info")
        except FileNotFoundError as error:
            if error.__cause__ is not None:  # fsspec raises it for every failure of a web server
                raise
            return None
        return info if info["type"] == "file" else None

    def _call(self, url: str, name: str, *arguments: object, **keywords: object) -> Any:
        """Call a method of the URL's file system with the path in it as the first argument.

        Raises:
            TransientError: If an asynchronous file system does not answer within `timeout_s`.
        """
        files, path = self.filesystem(url)
        if not getattr(files, "async_impl", False):
            return getattr(files, name)(path, *arguments, **keywords)
        from fsspec.asyn import sync

        async def within() -> Any:
            try:
                return await asyncio.wait_for(getattr(files, f"_{name}")(path, *arguments, **keywords), self.timeout_s)
            except TimeoutError as error:
                raise TransientError(f"no answer within {self.timeout_s:g} s") from error

        return sync(files.loop, within)


def _stat_in(info: Mapping[str, object]) -> Stat | None:
    """Return a file's version from fsspec's info; None for a folder or an unknown size, as in a web listing."""
    return None if info.get("size") is None or info.get("type") == "directory" else stat_of(info)


def _ls(files: Any, folder: str) -> dict[str, Mapping[str, object]]:
    """Return fsspec's info on the files directly in a folder, by path. It lists once; fsspec's glob lists often."""
    try:
        inside = files.ls(folder, detail=True)
    except FileNotFoundError as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, KeyError):
            raise
        return {}
    return {str(info["name"]): info for info in inside if info.get("type") != "directory"}


def _google(url: str, options: Mapping[str, Any]) -> tuple[Any, str] | None:
    """Return gcsfs's file system without gRPC, and the path in it; None for other URLs, or if the environment asks for gRPC.

    gcsfs asks over gRPC which kind of bucket it is (https://github.com/fsspec/gcsfs/pull/773). After that, workers that
    are forked later crash, and only zonal buckets need gRPC.
    """
    if not url.startswith(("gs://", "gcs://")) or os.environ.get("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"):
        return None
    from fsspec import get_filesystem_class

    if not get_filesystem_class(url.partition(":")[0]).__module__.startswith("gcsfs."):  # a user's own class
        return None
    import gcsfs.retry
    from gcsfs.core import GCSFileSystem

    gcsfs.retry.random = _WAITS  # it would draw its waits from Python's generator, which belongs to the samples
    options = {**GCSFileSystem._get_kwargs_from_urls(url), **options}
    return GCSFileSystem(**options), GCSFileSystem._strip_protocol(url)
