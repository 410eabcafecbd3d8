"""The index of all shards of a folder, in one file next to the folder that can be copied along with the data.

The file begins with a header: the shards' names, sizes, counts and checksums. One or two requests read it. Each shard's
own index follows, compressed. It is read when the shard is first opened, unless the first request has brought it.
"""

import dataclasses
import functools
import json
import os
import threading
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import LaterOffsets, ShardIndex, content_checksum
from loaderkit.files.atomic import sync_folder, write_atomically
from loaderkit.files.listing import Stat
from loaderkit.files.regular_file import open_regular
from loaderkit.files.storage import Storage
from loaderkit.files.urls import INDEX_SUFFIX, is_remote, shard_name, side_folder
from loaderkit.system.parallel import map_waiting

FOLDER_INDEX = "folder" + INDEX_SUFFIX
VERSION = 1
_MAGIC = b"LKFOLDER"
_FIXED = len(_MAGIC) + 8 + 4  # bytes: the magic, the header's size and its checksum
_FIRST = 1 << 20  # bytes of the first request: enough for the header of some thousand shards
_AT_ONCE = 16  # folders whose index is read at the same time
_COLUMNS = ("names", "kinds", "counts", "size_bytes", "changed_ns", "etags", "contents", "lengths")


def to_bytes(indexes: Mapping[str, ShardIndex]) -> bytes:
    """Return the content of a folder's index file, from indexes by the shards' names. Each must be `loaded`."""
    names = sorted(indexes)
    shards = [indexes[name] for name in names]
    bodies = [zlib.compress(shard.to_bytes(), 1) for shard in shards]
    columns = [
        names,
        [shard.kind for shard in shards],
        [shard.count for shard in shards],
        [shard.size_bytes for shard in shards],
        [shard.changed_ns for shard in shards],
        [shard.etag for shard in shards],
        [shard.content for shard in shards],
        [len(body) for body in bodies],
    ]
    header = json.dumps({"version": VERSION, **dict(zip(_COLUMNS, columns, strict=True))}).encode()
    fixed = _MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(4, "little")
    return b"".join((fixed, header, *bodies))


def write_folder_index(folder: str, indexes: Mapping[str, ShardIndex], storage: Storage | None = None) -> str:
    """Write a whole index file of a folder, and return its path or URL."""
    place, content = _places(folder)[0], to_bytes(indexes)
    if is_remote(place):
        (storage or Storage()).write(place, content)
    elif not Path(place).is_file() or Path(place).read_bytes() != content:
        write_atomically(Path(place), content)
        sync_folder(Path(place).parent)
    return place


def replace_indexes(
    folder: str, indexes: Mapping[str, ShardIndex], old: Iterable[Path], storage: Storage | None = None
) -> str | None:
    """Write a folder's index file. Then remove the files that it replaces: `old`, and an index file inside the folder.

    The new file is written first, so that each shard has an index even if the process is killed.

    Args:
        folder: Path or URL of the shards' folder.
        indexes: The shards' indexes by the shards' names.
        old: Index files of the shards.
        storage: How to reach a remote folder.

    Returns:
        The path or URL of the folder's index file; None if there are no indexes.
    """
    if not indexes:
        return None
    place = write_folder_index(folder, {name: index.loaded() for name, index in indexes.items()}, storage)
    for path in old if is_remote(folder) else (*old, Path(_places(folder)[1])):
        path.unlink(missing_ok=True)
    return place


def read_folder_index(folder: str, storage: Storage) -> dict[str, ShardIndex]:
    """Return the indexes in a folder's index file, by shard name and without offsets; empty if there is no file.

    Raises:
        ShardError: If the file is damaged, or of another version.
    """
    found: dict[str, ShardIndex] = {}
    for place in _places(folder):
        if is_remote(place):
            found = _read_remote_index(place, folder, storage)
        elif (version := _local_version(place)) is not None:
            found = _read_local_index(place, *version)
        if found:
            break
    return found


def local_folder_indexes(folder: str) -> list[Path]:
    """Return the paths of a local folder's index files that exist."""
    return [Path(place) for place in _places(folder) if Path(place).is_file()]


def _places(folder: str) -> tuple[str, str]:
    """Return the path or URL of a folder's index file, and that at which earlier versions wrote it."""
    return f"{side_folder(folder)}/{FOLDER_INDEX}", f"{folder.rstrip('/')}/{FOLDER_INDEX}"


def _read_remote_index(place: str, folder: str, storage: Storage) -> dict[str, ShardIndex]:
    try:
        return _read_index(place, storage)
    except OSError:
        if place == _places(folder)[-1]:
            raise
        return {}  # some stores refuse hidden names; if the store is down, the next path fails too


def _local_version(place: str) -> tuple[int, int] | None:
    try:
        found = os.stat(place)  # noqa: PTH116 - creating a Path takes longer than the call
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_mtime_ns


@functools.lru_cache(maxsize=1)
def _read_local_index(place: str, _inode: int, _changed_ns: int) -> dict[str, ShardIndex]:
    """Read a folder's index file once for several datasets over its shards. A changed file is read again."""
    return _read_index(place, Storage())


def read_whole_index(folder: str, storage: Storage) -> dict[str, ShardIndex]:
    """As `read_folder_index`, but read the whole file of a remote folder, so that no entry makes a request later.

    Raises:
        ShardError: If the header of the file is damaged, or of another version.
        OSError: If the file cannot be read.
    """
    found, content = {}, b""
    for name, entry in read_folder_index(folder, storage).items():
        if (later := entry.later) is not None:
            if not content:
                size = storage.stat(later.place).size_bytes
                content = b"".join(storage.read_many(later.place, [(0, size)], size))
            later = dataclasses.replace(later, content=content[later.start : later.stop])
        found[name] = dataclasses.replace(entry, later=later)
    return found


def _read_index(place: str, storage: Storage) -> dict[str, ShardIndex]:
    try:
        start = _read(place, 0, _FIRST, storage)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError:
        if is_remote(place):  # S3 returns 403 for a missing file if listing is forbidden
            return {}
        raise
    if not start.startswith(_MAGIC) and is_remote(place):  # some web servers return a page for any URL
        return {}
    size = int.from_bytes(start[len(_MAGIC) : len(_MAGIC) + 8], "little")
    if len(start) >= _FIRST and _FIXED + size > len(start):
        start += _read(place, len(start), _FIXED + size, storage)
    header = start[_FIXED : _FIXED + size]
    checksum = int.from_bytes(start[_FIXED - 4 : _FIXED], "little")
    if not start.startswith(_MAGIC) or len(header) != size or zlib.crc32(header) != checksum:
        raise _error(place, "its checksum differs")
    try:
        return _shards(place, json.loads(header), _FIXED + size, storage, start if is_remote(place) else b"")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _error(place, f"{type(error).__name__}: {error}") from error


class FolderIndexes:
    """The folders' index files. Each is read when a shard of its folder is first looked up. Threads may share this."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._read: dict[str, dict[str, ShardIndex]] = {}

    def get(self, shard: str) -> ShardIndex | None:
        """Return a shard's entry; None if its folder has no index file, or the file lacks the shard."""
        return self._entries(folder_of(shard)).get(shard_name(shard))

    def read(self, shards: Iterable[str]) -> None:
        """Read the index files of the folders of shards, several at a time, before they are looked up."""
        folders = list(dict.fromkeys(map(folder_of, shards)))
        for folder in folders[:1]:  # opens the session that the other requests share
            self._entries(folder)
        for _ in map_waiting(self._entries, folders[1:], _AT_ONCE):
            pass

    def _entries(self, folder: str) -> dict[str, ShardIndex]:
        with self._lock:
            lock = self._locks.setdefault(folder, threading.Lock())
        with lock:
            if folder not in self._read:
                self._read[folder] = read_folder_index(folder, self._storage)
        return self._read[folder]


def fitted(index: ShardIndex, shard: str, found: Stat) -> ShardIndex | None:
    """Return an index with the shard's current time and entity tag, or None if the shard's content differs.

    A copied shard has another time, and often another entity tag. So the size must be the same, and the tag, the time
    or the checksum too. A remote shard's checksum is compared later, when it is downloaded.
    """
    if index.size_bytes != found.size_bytes:
        return None
    same = index.fits(found)
    if not same and is_remote(shard):
        same = not index.etag and bool(index.content)
    elif not same:
        same = bool(index.content) and content_checksum(shard) == index.content
    return dataclasses.replace(index, changed_ns=found.changed_ns, etag=found.etag) if same else None


def folder_of(shard: str) -> str:
    """Return the folder of a shard, as a path or URL."""
    if is_remote(shard):
        return shard.partition("?")[0].rpartition("/")[0]
    return str(Path(shard).parent)


def _shards(place: str, header: Any, start: int, storage: Storage, known: bytes) -> dict[str, ShardIndex]:
    """Return the entries of a header. `known` is the start of the file: what it holds is not requested again."""
    if header["version"] != VERSION:
        raise ShardError(
            f"{place}: an index of version {header['version']}, this loaderkit reads {VERSION}. Write it again: "
            "`loaderkit index --folder-index`."
        )
    columns = [header[name] for name in _COLUMNS]
    types = (str, str, int, int, int, str, str, int)
    for name, values, wanted in zip(_COLUMNS, columns, types, strict=True):
        if not all(type(value) is wanted for value in values):
            raise ValueError(f"{name} of other types than {wanted.__name__}")
    found: dict[str, ShardIndex] = {}
    for name, kind, count, size_bytes, changed_ns, etag, checksum, length in zip(*columns, strict=True):
        if min(count, size_bytes, length) < 0 or "/" in name:
            raise ValueError(f"an entry {name!r} with {count} samples and {size_bytes} bytes")
        content = known[start : start + length] if start + length <= len(known) else None
        later = LaterOffsets(place, start, start + length, storage, content)
        start += length
        found[name] = ShardIndex(
            kind=kind,
            count=count,
            size_bytes=size_bytes,
            changed_ns=changed_ns,
            etag=etag,
            content=checksum,
            later=later,
        )
    return found


def _read(place: str, start: int, stop: int, storage: Storage) -> bytes:
    if is_remote(place):
        return storage.read(place, start, stop, apart=True)
    try:
        file = open_regular(place)
    except (ValueError, IsADirectoryError) as error:
        raise _error(place, "not a regular file") from error
    with file:
        file.seek(start)
        return file.read(stop - start)


def _error(place: str, what: str) -> ShardError:
    return ShardError(f"{place}: not a whole index file ({what}). Delete it, or run `loaderkit index --folder-index`.")
