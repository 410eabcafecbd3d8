"""Base of datasets of other tools (MDS, litdata), whose folders have an index.json that lists the shards."""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.datasets.unpacking import unpack
from loaderkit.files.listing import Stat
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, is_remote, relative_to
from loaderkit.system.arrays import Int64Array, native
from loaderkit.system.checks import check_ordered

INDEX = "index.json"
Bounds = npt.NDArray[np.uint32]  # (N + 1,) bytes where the samples of a shard begin, and the last ends


class Listed(NamedTuple):
    """A shard as index.json describes it.

    Args:
        name: Path of the uncompressed file, relative to the folder; empty if there is only a compressed one.
        size_bytes: Uncompressed size.
        samples: Number of samples.
        layout: The fields of a sample, in the format's own form.
        packed: Path of the compressed file; empty if there is none.
        packed_bytes: Size of the compressed file; None if it is not listed.
        codec: Name of the compression, such as "zstd".
    """

    name: str
    size_bytes: int
    samples: int
    layout: Any
    packed: str = ""
    packed_bytes: int | None = None
    codec: str = ""


class ListedDataset(ShardedDataset):
    """Base of datasets over folders with an index.json. No index is made, and nothing is written into the folders.

    A subclass defines `read_folder`, `check_layouts`, `open` and `read`.
    """

    keeps_index: ClassVar[bool] = False
    reads_folders: ClassVar[bool] = True

    def __init__(
        self,
        urls: Urls,
        *,
        split: str | None,
        decode: Mapping[str, Callable[[bytes], object]] | None,
        transform: Transform | None,
        max_open: int,
        storage: Storage | None,
    ) -> None:
        self._own = dict(decode or {})
        self._entries: dict[str, Listed] = {}  # by shard
        super().__init__(urls, transform=transform, max_open=max_open, storage=storage, split=split)
        self._plain_bytes = sum(entry.size_bytes for entry in self._entries.values())

    @abstractmethod
    def read_folder(self, folder: str) -> list[Listed]:
        """Return the shards that a folder's index.json lists, in their order."""

    @abstractmethod
    def check_layouts(self, entries: Mapping[str, Listed]) -> None:
        """Raise a ShardError if the shards' samples cannot be read, or differ in their fields."""

    def _parts(self) -> list[object]:
        return [*super()._parts(), *self._own.values()]

    def find(self, urls: Urls, split: str | None) -> Mapping[str, Stat | None]:
        """Return the shards that each folder's index.json lists, in its order."""
        folders = self._folders(urls)
        found: dict[str, Stat | None] = {}
        for folder in folders:
            place = join(folder, split) if split else folder
            for shard, version, entry in self._locate(place, self.read_folder(place)):
                found[shard] = version
                self._entries[shard] = entry
        if not found:
            raise ShardError(f"{folders[0]}: {INDEX} lists no shards, wanted at least one.")
        self.check_layouts(self._entries)
        return found

    def _folders(self, urls: Urls) -> list[str]:
        """Return the folders that URLs name; raise a ValueError if one comes twice, a ShardError for a single shard."""
        check_ordered(type(self).__name__, "urls", urls)
        found: list[str] = []
        for url in [urls] if isinstance(urls, str | os.PathLike) else urls:
            folder = os.fspath(url).removeprefix("file://").removesuffix(f"/{INDEX}").rstrip("/") or "/"
            if folder.endswith((*self.suffixes, *self.shared_suffixes)):
                raise ShardError(f"{folder}: is one shard of a dataset, wanted its folder, which has an {INDEX}.")
            if folder in found:
                raise ValueError(f"{folder} is listed more than once, wanted each folder once.")
            found.append(folder)
        if not found:
            raise ValueError(f"no urls given, wanted a folder or URL with an {INDEX}, or a list of them.")
        return found

    def _locate(self, folder: str, entries: Sequence[Listed]) -> list[tuple[str, Stat | None, Listed]]:
        """Return each shard's path or URL, its version if it is remote and known, and its entry.

        The uncompressed file is chosen if it exists and has the listed size, else the compressed one. A web server's
        files are not looked up: there, the compressed file is chosen if index.json names one.

        Raises:
            FileNotFoundError: If a shard has neither file.
        """
        listed: dict[str, tuple[str, Stat | None]] = {}
        if folder.startswith(("http://", "https://")):  # many servers list nothing
            listed = {name: (join(folder, name), None) for name in (entry.packed or entry.name for entry in entries)}
        elif is_remote(folder):
            files = self.storage.find(f"{folder.rstrip('/')}/", (*self.suffixes, *self.shared_suffixes))
            listed = {relative_to(folder, url): (url, version) for url, version in files.items()}
        found = []
        for entry in entries:
            for name in (entry.name, entry.packed):
                place, version = listed.get(name, ("", None)) if is_remote(folder) else _local(join(folder, name))
                is_whole = not entry.packed or version is None or version.size_bytes == entry.size_bytes
                if name and place and (is_whole or name == entry.packed):
                    found.append((place, version if is_remote(folder) else None, entry))
                    break
            else:
                name = join(folder, entry.packed or entry.name)
                raise FileNotFoundError(
                    f"{name} is not there, wanted the shards that {INDEX} lists. Copy the folder again."
                )
        return found

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        entry, found = self._entries[shard], self.files.stat(shard)
        wanted = entry.packed_bytes if self.is_packed(shard) else entry.size_bytes
        if wanted is not None and found.size_bytes != wanted:
            raise ShardError(
                f"{shard}: has {found.size_bytes:,} bytes, {INDEX} says {wanted:,}. It is cut or of another version: copy it again."
            )
        if 4 * (entry.samples + 2) > entry.size_bytes:
            raise ShardError(
                f"{shard}: is too short for the offsets of {entry.samples:,} samples, as {INDEX} says. It is damaged."
            )
        return entry.samples, None

    def is_packed(self, shard: str) -> bool:
        """Return whether a shard is read from its compressed file."""
        entry = self._entries[shard]
        return bool(entry.packed) and (not entry.name or shard.endswith(entry.packed))

    def open_plain(self, shard: str) -> LineFile:
        """Open the uncompressed content of a shard. A compressed file is unpacked into the cache, or into memory."""
        if not self.is_packed(shard):
            return LineFile(shard, self.opened.open_soon(shard))
        entry = self._entries[shard]

        def make() -> bytes:
            with self.files.open(shard) as file:
                return unpack(entry.codec, file.read(), entry.size_bytes, shard)

        found = self.files.stat(shard)
        return LineFile(
            shard, self.storage.open_made(shard, found, entry.size_bytes, make, data_bytes=self._plain_bytes)
        )

    def read_head(self, shard: str, file: LineFile, start: int, stop: int) -> bytes:
        """Return a shard's bytes from `start` to `stop`, such as its header, without waiting for its download."""
        if not file.is_remote:
            (content,) = file.read([start], [stop])
            return content
        with self.files.open_head(shard) as head:
            head.seek(start)
            return head.read(stop - start)

    def read_bounds(self, shard: str, file: LineFile) -> Bounds:
        """Return where samples begin and the last one ends (N + 1,), in bytes, as the shard's header says.

        The header has the number of samples, then these offsets (uint32).

        Raises:
            ShardError: If the header does not fit the shard.
        """
        entry = self._entries[shard]
        size = 4 * (entry.samples + 2)
        numbers = native(np.frombuffer(self.read_head(shard, file, 0, size), "<u4"))
        found, bounds = numbers[0], numbers[1:]
        is_sound = found == entry.samples and bounds[0] >= size and bounds[-1] <= entry.size_bytes
        if not is_sound or (bounds[1:] < bounds[:-1]).any():
            raise ShardError(
                f"{shard}: its head has {found:,} samples up to byte {bounds[-1]:,}, {INDEX} says {entry.samples:,} in "
                f"{entry.size_bytes:,} bytes. It is damaged."
            )
        return bounds

    def needs_download(self, part: int) -> bool:
        shard = self.shards[part]
        is_unpacked = self.is_packed(shard) and self.storage.has_made(shard, self.files.stat(shard))
        return not is_unpacked and super().needs_download(part)

    def fingerprint(self) -> str:
        """Return the names, sizes and numbers of samples of the shards."""
        entries = (self._entries[shard] for shard in self.shards)
        names = [f"{entry.name or entry.packed}:{entry.size_bytes}:{entry.samples}" for entry in entries]
        return f"{self.kind} {', '.join(names)}"


def join(folder: str, name: str) -> str:
    """Return the path or URL of a file or folder within a folder."""
    return f"{folder.rstrip('/')}/{name}"


def natural(value: object) -> int:
    """Return a size or count from JSON; raise a ValueError unless it is an integer of at least 0."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value


def inner(name: Any) -> str:
    """Return a relative path; raise a ValueError if it leads out of its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{name!r} is not in the folder")
    return str(path)


def _local(path: str) -> tuple[str, Stat | None]:
    """Return a local path and its version; an empty path and None if there is no such file."""
    try:
        found = Path(path).stat()
    except OSError:
        return "", None
    return path, Stat(found.st_size, found.st_mtime_ns)
