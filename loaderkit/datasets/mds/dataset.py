"""MDS shards: one dict of values for each sample, decoded as mosaicml-streaming decodes them."""

import dataclasses
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.mds.encodings import Decode, decoder_of
from loaderkit.datasets.mds.folder import INDEX, Columns, MDSShard, join, read_index
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.datasets.unpacking import CODECS, unpack
from loaderkit.files.listing import Stat
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, is_remote, relative_to
from loaderkit.seeding.draws import Draws, draws
from loaderkit.system.arrays import Int64Array

_PLAIN = ".mds"


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """How to decode samples: the columns in the order of the file, and which of them to give, in which order."""

    names: tuple[str, ...]
    decoders: tuple[Decode | None, ...]  # None for columns that are left out
    sizes: tuple[int | None, ...]
    wanted: tuple[str, ...] | None  # None for all, in their order


@dataclasses.dataclass(frozen=True, slots=True)
class _OpenShard:
    file: LineFile
    bounds: Int64Array  # (N + 1,) where samples begin, and the last ends
    layout: _Layout

    def close(self) -> None:
        self.file.close()


class MDSDataset(ShardedDataset):
    """Samples of MDS shards, as mosaicml-streaming writes them, in place.

    A sample is a dict with the columns in the order of the file, which is that of their names. The values are those of
    `streaming.StreamingDataset`: numbers of Python or numpy, arrays, texts, bytes, JSON, and pictures of Pillow. Nothing is
    written into the folder, and no index is made: index.json has the number of samples, and each shard has its offsets. Compressed
    shards (zstd, gz, bz2, br, snappy) are unpacked into the cache of `storage`, or into memory if it has none.

    Args:
        urls: A folder or URL with an index.json, or a list of them, one for each stream.
        columns: Columns to read, in this order; by default all.
        split: The folder within each one that has the index.json, such as "train".
        decode: Functions by encoding (such as "jpeg", or "ndarray:uint8") that replace the usual ones. Each takes the value's
            bytes. `{"jpeg": lk.DECODERS["jpg"]}` decodes pictures to uint8 (3, H, W), `{"pkl": pickle.loads}` reads pickles of a
            writer that you trust.
        transform: Called with each sample; its result replaces the sample.
        max_open: Shards that a process keeps open, with all its threads.
        storage: How to reach remote folders, and where to keep copies and unpacked shards.

    Raises:
        FileNotFoundError: If a folder has no index.json, or a shard is missing.
        ShardError: If a shard or index.json is cut, damaged or of another format, or a column is pickled or of an unknown encoding. On
            reading: if a value cannot be decoded.
        ImportError: If shards are packed by zstd, br or snappy, and pyarrow is not installed.

    Examples:
        >>> dataset = lk.MDSDataset("s3://bucket/mds", split="train")  # doctest: +SKIP
        >>> dataset[0]  # doctest: +SKIP
        {'label': 3, 'text': 'a text'}
    """

    kind = "mds-1"
    suffixes: ClassVar[tuple[str, ...]] = (_PLAIN, *(f"{_PLAIN}.{codec}" for codec in CODECS))
    keeps_index: ClassVar[bool] = False
    reads_folders: ClassVar[bool] = True

    def __init__(
        self,
        urls: Urls,
        columns: Sequence[str] | None = None,
        *,
        split: str | None = None,
        decode: Mapping[str, Callable[[bytes], Any]] | None = None,
        transform: Callable[[Any], Any] | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
    ) -> None:
        self.columns = None if columns is None else tuple(columns)
        self._own = dict(decode or {})
        self._decoders_draw = max(map(draws, self._own.values()), default=Draws.NOTHING)
        self._entries: dict[str, MDSShard] = {}  # by shard
        self._layouts: dict[Columns, _Layout] = {}
        super().__init__(urls, transform=transform, max_open=max_open, storage=storage, split=split)
        self._unpacked_bytes = sum(entry.size_bytes for entry in self._entries.values())

    def _draws(self) -> Draws:
        return max(super()._draws(), self._decoders_draw)

    def find(self, urls: Urls, split: str | None) -> Mapping[str, Stat | None]:
        """Return the shards that each folder's index.json lists, in its order."""
        folders = _folders(urls, self.suffixes)
        found: dict[str, Stat | None] = {}
        for folder in folders:
            place = join(folder, split) if split else folder
            shards = self._locate(place, read_index(place, self.storage))
            found |= {shard: version for shard, (version, _) in shards.items()}
            self._entries |= {shard: entry for shard, (_, entry) in shards.items()}
        if not found:
            raise ShardError(f"{folders[0]}: {INDEX} lists no shards, wanted at least one.")
        self._check_columns()
        return found

    def _locate(self, folder: str, entries: Sequence[MDSShard]) -> dict[str, tuple[Stat | None, MDSShard]]:
        """Return the file of each shard: the plain one if it is whole, else the compressed one."""
        listed: dict[str, tuple[str, Stat | None]] = {}
        if folder.startswith(("http://", "https://")):  # many servers list nothing
            listed = {name: (join(folder, name), None) for name in (entry.packed or entry.name for entry in entries)}
        elif is_remote(folder):
            files = self.storage.find(f"{folder.rstrip('/')}/", self.suffixes)
            listed = {relative_to(folder, url): (url, version) for url, version in files.items()}
        found = {}
        for entry in entries:
            for name, size_bytes in ((entry.name, entry.size_bytes), (entry.packed, entry.packed_bytes)):
                place, version = listed.get(name, ("", None)) if is_remote(folder) else _local(join(folder, name))
                is_whole = version is None or version.size_bytes == size_bytes or not entry.packed
                if name and place and (is_whole or name == entry.packed):
                    found[place] = version if is_remote(folder) else None, entry
                    break
            else:
                raise FileNotFoundError(
                    f"{join(folder, entry.packed or entry.name)} is not there, wanted the shards that {INDEX} lists. Copy the folder again."
                )
        return found

    def _check_columns(self) -> None:
        """Raise a ShardError if the wanted columns are missing, cannot be read, or differ between shards."""
        first: tuple[str, dict[str, str]] | None = None
        for shard, entry in self._entries.items():
            if entry.columns in self._layouts:
                continue
            self._layouts[entry.columns] = self._layout(shard, entry.columns)
            given = zip(entry.columns.names, entry.columns.encodings, strict=True)
            kinds = {name: encoding.partition(":")[0] for name, encoding in given if self._wants(name)}
            if first is not None and kinds != first[1]:
                raise ShardError(
                    f"{shard}: has the columns {kinds}, {first[0]} has {first[1]}, wanted the same in all. Choose what they share: "
                    "columns=[...], or join two datasets that make equal samples: lk.ConcatDataset."
                )
            first = first or (shard, kinds)

    def _layout(self, shard: str, columns: Columns) -> _Layout:
        if gone := [name for name in self.columns or () if name not in columns.names]:
            raise ShardError(f"{shard}: has no column {gone[0]!r}, wanted one of {list(columns.names)}.")
        given = zip(columns.names, columns.encodings, strict=True)
        decoders = tuple(
            decoder_of(encoding, self._own, f"{shard}: column {name!r}") if self._wants(name) else None
            for name, encoding in given
        )
        return _Layout(columns.names, decoders, columns.sizes, self.columns)

    def _wants(self, name: str) -> bool:
        return self.columns is None or name in self.columns

    def _index_all(self) -> list[ShardIndex]:
        return list(map(self.scanned_index, self.shards))  # reads nothing

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        entry, found = self._entries[shard], self.stat(shard)
        wanted = entry.packed_bytes if self._is_packed(shard) else entry.size_bytes
        if found.size_bytes != wanted:
            raise ShardError(
                f"{shard}: has {found.size_bytes:,} bytes, {INDEX} says {wanted:,}. It is cut or of another version: copy it again."
            )
        if 4 * (entry.samples + 2) > entry.size_bytes:
            raise ShardError(
                f"{shard}: is too short for the offsets of {entry.samples:,} samples, as {INDEX} says. It is damaged."
            )
        return entry.samples, None

    def open(self, shard: str, index: ShardIndex) -> _OpenShard:
        entry = self._entries[shard]
        file = LineFile(shard, self._open_bytes(shard, entry))
        try:
            return _OpenShard(file, self._read_bounds(shard, entry, file), self._layouts[entry.columns])
        except BaseException:
            file.close()
            raise

    def _open_bytes(self, shard: str, entry: MDSShard) -> Any:
        if not self._is_packed(shard):
            return self.open_soon(shard)

        def make() -> bytes:
            with self.open_file(shard) as file:
                return unpack(entry.codec, file.read(), entry.size_bytes, shard)

        return self.storage.open_made(shard, self.stat(shard), entry.size_bytes, make, data_bytes=self._unpacked_bytes)

    def _read_bounds(self, shard: str, entry: MDSShard, file: LineFile) -> Int64Array:
        """Return where the samples are, from the head of a shard: their number, where each begins, and where the last ends."""
        size = 4 * (entry.samples + 2)
        if file.is_remote:  # the samples must not wait for a download
            with self.open_head(shard) as head:
                content = head.read(size)
        else:
            (content,) = file.read([0], [size])
        found, *_ = numbers = np.frombuffer(content, "<u4").astype(np.int64)
        bounds = numbers[1:]
        if found != entry.samples or bounds[0] < size or bounds[-1] > entry.size_bytes or (np.diff(bounds) < 0).any():
            raise ShardError(
                f"{shard}: its head has {found:,} samples up to byte {bounds[-1]:,}, {INDEX} says {entry.samples:,} in "
                f"{entry.size_bytes:,} bytes. It is damaged."
            )
        return bounds

    def read(self, handle: _OpenShard, rows: Int64Array, index: ShardIndex) -> list[dict[str, Any]]:
        starts, ends = handle.bounds[rows].tolist(), handle.bounds[rows + 1].tolist()
        content, places = handle.file.read_together(starts, ends)
        sizes = [end - start for start, end in zip(starts, ends, strict=True)]
        return [
            _decode(handle, content[place : place + size], row)
            for place, size, row in zip(places, sizes, rows.tolist(), strict=True)
        ]

    def _is_packed(self, shard: str) -> bool:
        return not shard.endswith(_PLAIN)

    def _look_ahead(self, part: int, wanted: Int64Array) -> None:
        following = next(iter(self.shards[part + 1 : part + 2]), _PLAIN)
        if not (self._is_packed(following) and self.storage.has_made(following, self.stat(following))):
            super()._look_ahead(part, wanted)

    def fingerprint(self) -> str:
        """Return the names, sizes and numbers of samples of the plain shards, and the columns."""
        shards = (self._entries[shard] for shard in self.shards)
        names = [f"{entry.name}:{entry.size_bytes}:{entry.samples}" for entry in shards]
        return f"{self.kind} {', '.join(names)}" + ("" if self.columns is None else f" columns {list(self.columns)}")


def _decode(handle: _OpenShard, content: memoryview, row: int) -> dict[str, Any]:
    """Return a sample from its bytes: the sizes of the columns that have no fixed one, then all values."""
    layout = handle.layout
    sample: dict[str, Any] = {}
    name = ""
    try:
        at = 4 * layout.sizes.count(None)
        given = iter(struct.unpack_from(f"<{at // 4}I", content))
        for name, decode, fixed in zip(layout.names, layout.decoders, layout.sizes, strict=True):
            size = next(given) if fixed is None else fixed
            if decode is not None:
                sample[name] = decode(content[at : at + size])
            at += size
        if at != len(content):
            raise ValueError(f"its values have {at:,} bytes, wanted {len(content):,}")
    except (ImportError, MemoryError):  # not a fault of the file
        raise
    except Exception as error:
        raise ShardError(
            f"{handle.file.shard}: sample {row}, column {name!r} can't be decoded, {type(error).__name__}: {error}."
        ) from error
    return sample if layout.wanted is None else {each: sample[each] for each in layout.wanted}


def _folders(urls: Urls, suffixes: tuple[str, ...]) -> list[str]:
    """Return the folders that some URLs name, each once."""
    found: list[str] = []
    for url in [urls] if isinstance(urls, str | os.PathLike) else urls:
        folder = os.fspath(url).removeprefix("file://").removesuffix(f"/{INDEX}").rstrip("/") or "/"
        if folder.endswith(suffixes):
            raise ShardError(f"{folder}: is one shard of an MDS dataset, wanted its folder, which has an {INDEX}.")
        if folder in found:
            raise ValueError(f"{folder} is listed more than once, wanted each folder once.")
        found.append(folder)
    if not found:
        raise ValueError(f"no urls given, wanted a folder or URL with an {INDEX}, or a list of them.")
    return found


def _local(path: str) -> tuple[str, Stat | None]:
    """Return a path and its version; no path if there is no such file."""
    try:
        found = Path(path).stat()
    except OSError:
        return "", None
    return path, Stat(found.st_size, found.st_mtime_ns)
