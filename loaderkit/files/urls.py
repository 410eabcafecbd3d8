"""Paths and URLs of files: open, inspect and compare both in the same way."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from loaderkit.files.foreign_formats import local_reader
from loaderkit.files.listing import Stat
from loaderkit.files.regular_file import open_regular
from loaderkit.files.storage import Storage

# Lists first: a command line takes the first type that fits, and everything fits a string.
Urls = Sequence[str | os.PathLike[str]] | str | os.PathLike[str]

INDEX_SUFFIX = ".lkindex"  # of the index file of a shard
_SMALL = 1 << 24  # bytes that `read_in` reads of a remote file, at most


def is_remote(url: str) -> bool:
    """Return whether a URL goes through fsspec."""
    return "://" in url


def side_folder(folder: str) -> str:
    """Return the hidden folder that holds the manifest and index of a folder of shards.

    It lies next to the folder, because other tools read all files in the folder. For a bucket, a Hugging Face
    repository or a root it lies inside.
    """
    if is_remote(folder):
        scheme, _, path = folder.rstrip("/").partition("://")
        head, _, name = path.rpartition("/")
        is_root = path.count("/") < (3 if scheme == "hf" else 1)  # hf://datasets/user/name
        return f"{scheme}://{path}/.loaderkit" if is_root else f"{scheme}://{head}/.{name}.loaderkit"
    head, name = os.path.split(folder.rstrip("/"))
    if name in ("", ".", "..") or os.path.islink(folder.rstrip("/")):  # noqa: PTH114 - as `folder` is written
        head, name = os.path.split(os.path.realpath(folder))
    return os.path.join(head, f".{name}.loaderkit" if name else ".loaderkit")  # noqa: PTH118


def shard_name(url: str) -> str:
    """Return the file name of a shard, without folder, query and fragment."""
    path = urlsplit(url).path if url.startswith(("http://", "https://")) else url
    return os.path.basename(path.rstrip("/"))  # noqa: PTH119 - creating a Path takes longer than the rest


def open_file(url: str, storage: Storage | None = None) -> BinaryIO:
    """Open a shard as a seekable file of bytes."""
    return (storage or Storage()).open(url) if is_remote(url) else open_regular(url)


def stat(url: str, storage: Storage | None = None) -> Stat:
    """Return a shard's current version."""
    if is_remote(url):
        return (storage or Storage()).stat(url)
    found = os.stat(url)  # noqa: PTH116 - creating a Path takes longer than the call
    return Stat(found.st_size, found.st_mtime_ns)


def relative_to(folder: str, shard: str) -> str:
    """Return a shard's path relative to its folder. Both are paths or both are URLs."""
    if is_remote(folder):
        folder, shard = (name.partition("://")[2].strip("/") for name in (folder, shard))
    else:
        folder = str(Path(folder))
    return shard if folder == "." else shard.removeprefix(folder).lstrip("/")


def read_in(folder: str, storage: Storage | None = None) -> Callable[[str], bytes]:
    """Return a function that reads small files of a folder by their relative paths."""
    if is_remote(folder):
        return lambda name: (storage or Storage()).read(f"{folder.rstrip('/')}/{name}", 0, _SMALL)
    return local_reader(folder)
