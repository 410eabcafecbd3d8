"""The index of a shard: its number of samples and where each one is. It is made once, and saved in a small file."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.files.atomic import write_atomically
from loaderkit.files.listing import Stat
from loaderkit.files.regular_file import open_regular, read_regular
from loaderkit.files.storage import Storage
from loaderkit.files.urls import INDEX_SUFFIX, is_remote, open_file, shard_name
from loaderkit.seeding.keys import derive_seed
from loaderkit.system.arrays import Int64Array

VERSION = 1
_VARIABLE = "LOADERKIT_INDEX_DIR"
_said: list[str] = []  # warnings of this process: why indexes cannot be saved
_MAGIC = b"LKINDEX\n"
_FIELDS: dict[str, type] = {
    "kind": str,
    "count": int,
    "size_bytes": int,
    "changed_ns": int,
    "content": str,
    "etag": str,
}


@dataclass(frozen=True, slots=True)
class LaterOffsets:
    """Where a shard's compressed index is in the index file of its folder."""

    place: str  # path or URL of the file
    start: int
    stop: int
    storage: Storage
    content: bytes | None = None  # the compressed index, if it has been read

    def read(self) -> "ShardIndex":
        """Return the shard's index with its offsets; raise a ShardError if the file has changed."""
        if self.content is not None:
            content = self.content
        elif is_remote(self.place):
            content = self.storage.read(self.place, self.start, self.stop)
        else:
            with open_regular(self.place) as file:
                file.seek(self.start)
                content = file.read(self.stop - self.start)
        try:
            return ShardIndex.from_bytes(zlib.decompress(content), self.place)
        except zlib.error as error:
            raise ShardError(
                f"{self.place}: is damaged, or changed while it was in use. Make the dataset again, or run "
                "`loaderkit index --folder-index`."
            ) from error


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """What is known about one shard.

    Args:
        kind: Name and version of the format that made the index. Other formats ignore it.
        count: Number of samples.
        size_bytes: The shard's size when it was indexed.
        changed_ns: The shard's modification time in ns when it was indexed; 0 if unknown.
        etag: A remote shard's entity tag when it was indexed; empty if unknown.
        offsets: Where the samples are, int64; each format has its own layout. None if the format needs no offsets.
        content: Checksum of the shard (see `content_checksum`); empty if none was computed.
        later: Where to read the offsets, if they have not been read yet; see `loaded`.
    """

    kind: str
    count: int
    size_bytes: int
    changed_ns: int
    offsets: Int64Array | None = None
    content: str = ""
    etag: str = ""
    later: LaterOffsets | None = None

    def fits(self, found: Stat) -> bool:
        """Return whether the shard still has the size, and the entity tag or the time, that it had when it was indexed."""
        return Stat(self.size_bytes, self.changed_ns, self.etag).is_same(found)

    def loaded(self) -> "ShardIndex":
        """Return this index with its offsets; raise a ShardError if the file that holds them has changed."""
        if self.later is None:
            return self
        found = self.later.read()
        if (found.kind, found.count, found.size_bytes) != (self.kind, self.count, self.size_bytes):
            raise ShardError(f"{self.later.place}: changed while it was in use. Make the dataset again.")
        return dataclasses.replace(self, offsets=found.offsets, later=None)

    def spans(self, shard: str) -> Int64Array:
        """Return the offsets, or raise a ShardError if there are none."""
        if self.offsets is None:
            raise ShardError(f"{shard}: its index has no offsets. Delete the index.")
        return self.offsets

    def to_bytes(self) -> bytes:
        """Return the content of the index file: a line of JSON, the offsets, and a checksum of both."""
        shape = None if self.offsets is None else list(self.offsets.shape)
        header = {"version": VERSION, "kind": self.kind, "count": self.count, "shape": shape}
        header |= {"size_bytes": self.size_bytes, "changed_ns": self.changed_ns, "content": self.content}
        header |= {"etag": self.etag} if self.etag else {}
        line = _MAGIC + json.dumps(header).encode() + b"\n"
        body = b"" if self.offsets is None else np.ascontiguousarray(self.offsets, dtype="<i8").reshape(-1).data
        return b"".join((line, body, zlib.crc32(body, zlib.crc32(line)).to_bytes(4, "little")))

    @classmethod
    def from_bytes(cls, content: bytes, path: Path | str) -> "ShardIndex":
        """Parse the content of an index file; raise a ShardError if it is cut, damaged or of another version."""
        checksum = int.from_bytes(content[-4:], "little")
        if not content.startswith(_MAGIC) or zlib.crc32(memoryview(content)[:-4]) != checksum:
            raise index_error(path, "its checksum differs")
        end = content.find(b"\n", len(_MAGIC), -4)
        try:
            header = json.loads(content[len(_MAGIC) : end])
            version = header["version"]
            if version == VERSION:
                return cls._from_fields(header, memoryview(content)[end + 1 : -4])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise index_error(path, f"{type(error).__name__}: {error}") from error
        raise ShardError(
            f"{path}: an index of version {version}, this loaderkit reads {VERSION}. Run `loaderkit index` again."
        )

    @classmethod
    def _from_fields(cls, header: Mapping[str, Any], body: memoryview) -> "ShardIndex":
        fields: dict[str, Any] = {name: header[name] for name in _FIELDS if name in header}
        wrong = [name for name, value in fields.items() if type(value) is not _FIELDS[name]]
        if wrong or fields["count"] < 0:
            raise ValueError(f"{wrong or 'count'} of {fields}")
        shape = header["shape"]
        offsets = None if shape is None else np.frombuffer(body, dtype="<i8").reshape(shape).astype(np.int64)
        return cls(**fields, offsets=offsets)


def index_error(path: Path | str, what: str) -> ShardError:
    """Return an error about an index file."""
    return ShardError(f"{path}: not a whole index file ({what}). Delete it, or run `loaderkit index`.")


def content_checksum(shard: str, storage: Storage | None = None) -> str:
    """Return a digest of a shard's content (BLAKE2b, 32 hexadecimal digits)."""
    found = hashlib.blake2b(digest_size=16)
    with open_file(shard, storage) as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def index_path(shard: str, folder: str | None) -> Path:
    """Return the path of a shard's index file in a folder; None is the user's folder of indexes.

    Raises:
        FileNotFoundError: If the user has no such folder; see `default_folder`.
    """
    return (Path(folder) if folder else default_folder()) / index_name(shard)


def index_name(shard: str) -> str:
    """Return the name of a shard's index file in a folder of indexes."""
    name = shard if is_remote(shard) else os.path.realpath(shard)
    return f"{derive_seed(name):016x}-{shard_name(shard)[-200:]}{INDEX_SUFFIX}"


def beside_path(shard: str) -> Path:
    """Return the path of the index next to a local shard, which `loaderkit index --beside` writes."""
    return Path(shard + INDEX_SUFFIX)


def default_folder() -> Path:
    """Return the user's folder of indexes: LOADERKIT_INDEX_DIR, else `loaderkit/index` in the folder of caches.

    Raises:
        FileNotFoundError: If the environment names no home folder.
    """
    if given := os.environ.get(_VARIABLE):
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if Path(cache).is_absolute():  # the XDG specification says to ignore relative paths
        return Path(cache, "loaderkit", "index")
    try:
        return Path.home() / ".cache" / "loaderkit" / "index"
    except RuntimeError as error:
        raise FileNotFoundError(errno.ENOENT, f"no home folder for indexes. Set {_VARIABLE}") from error


def saved_indexes(shard: str, kind: str, folder: str | None) -> Iterator[tuple[Path, ShardIndex]]:
    """Yield a shard's saved indexes of this kind with their paths: in the folder, then next to the shard.

    The shard may have changed since it was indexed; see `fits`. If `folder` is given, no index next to the shard is
    read.
    """
    for path in _index_files(shard, folder):
        try:
            index = read_index(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            if folder is not None:
                raise
            continue
        if index.kind == kind:
            yield path, index


def saved_names(folder: str | None) -> set[str] | None:
    """Return the names of the files in a folder of indexes, None for the user's; None if they can't be listed."""
    try:
        place = Path(folder) if folder else default_folder()
        return set(os.listdir(place)) if place.exists() else set()  # noqa: PTH208 - only names
    except OSError:
        return None


def _index_files(shard: str, folder: str | None) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):  # without a home
        yield index_path(shard, folder)
    if folder is None and not is_remote(shard):
        yield beside_path(shard)


def read_index(path: Path) -> ShardIndex:
    """Return the index in a file.

    Raises:
        FileNotFoundError: If there is no such file.
        ShardError: If it is damaged or of another version.
    """
    try:
        content = read_regular(path)
    except (ValueError, IsADirectoryError) as error:
        raise index_error(path, "not a regular file") from error
    return ShardIndex.from_bytes(content, path)


def save_index(shard: str, index: ShardIndex, folder: str | None) -> None:
    """Write a shard's index file atomically."""
    path = index_path(shard, folder)
    try:
        write_atomically(path, index.to_bytes())
    except OSError as error:
        error.add_note(f"loaderkit: raised while writing the index {path}. Choose another folder: index_dir=...")
        raise


def keep_index(shard: str, index: ShardIndex, folder: str | None) -> None:
    """Save a new index. If the user's folder of indexes cannot be written, warn once; raise for another folder."""
    try:
        save_index(shard, index, folder)
    except OSError as error:
        if folder is not None:
            raise
        if not _said:
            _said.append(str(error))
            warnings.warn(
                f"the index of {shard} cannot be kept, so each start reads the shard again: {error}. "
                f"Set {_VARIABLE} to a folder that can be written, or give index_dir=...",
                stacklevel=3,
            )
