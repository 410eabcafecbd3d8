"""Read MDS shards: each sample is a dict of values, decoded as mosaicml-streaming decodes them."""

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.mds.encodings import Decode, decoder_of
from loaderkit.datasets.mds.folder import Columns, read_index
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.shards.listed import Bounds, Listed, ListedDataset
from loaderkit.datasets.unpacking import CODECS
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import listed

_PLAIN = ".mds"


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """How to decode a shard's samples: all its columns (C,) in the order of the file, and which of them are wanted."""

    names: tuple[str, ...]
    decoders: tuple[Decode | None, ...]  # None for a column that is not wanted
    sizes: tuple[int | None, ...]  # bytes of each value; None if sizes vary
    wanted: tuple[str, ...] | None  # names in the order to return; None for all, in the order of the file


@dataclasses.dataclass(frozen=True, slots=True)
class _OpenShard:
    file: LineFile
    bounds: Bounds  # (N + 1,) the bytes at which samples begin, and at which the last one ends
    layout: _Layout

    def close(self) -> None:
        self.file.close()


class MDSDataset(ListedDataset):
    """Samples of MDS shards, which mosaicml-streaming writes.

    A sample is a dict with the columns in the order of the file, which is sorted by name. The values are those of
    `streaming.StreamingDataset`: Python or numpy numbers, arrays, texts, bytes, JSON, and Pillow images. Nothing is
    written into the folder, and no index is made: index.json has the number of samples, and each shard has its offsets.
    Compressed shards (zstd, gz, bz2, br, snappy) are decompressed into the cache of `storage`, or into memory if there
    is no cache.

    Args:
        urls: A folder or URL with an index.json, or a list of them, one for each stream.
        columns: Columns to read, in this order; by default all.
        split: The subfolder of each folder in `urls` that has the index.json, such as "train".
        decode: Functions that replace the usual decoders, by encoding, such as "jpeg" or "ndarray:uint8". Each takes
            the value's bytes. `{"jpeg": lk.DECODERS["jpg"]}` decodes pictures to uint8 (3, H, W).
            `{"pkl": pickle.loads}` reads pickles: only from a writer that you trust.
        transform: Called with each sample; its result replaces the sample.
        max_open: Shards that a process keeps open, with all its threads.
        storage: How to reach remote folders, and where to keep copies and decompressed shards.

    Raises:
        FileNotFoundError: If a folder has no index.json, or a shard is missing.
        ShardError: If a shard or index.json is cut, damaged or of another format, or a column is pickled or of an
            unknown encoding without a function in `decode`. On reading: if a value cannot be decoded.
        ImportError: If shards are compressed with zstd, br or snappy, and pyarrow is not installed.

    Examples:
        >>> dataset = lk.MDSDataset("s3://bucket/mds", split="train")  # doctest: +SKIP
        >>> dataset[0]  # doctest: +SKIP
        {'label': 3, 'text': 'a text'}
    """

    kind = "mds-1"
    suffixes: ClassVar[tuple[str, ...]] = (_PLAIN, *(f"{_PLAIN}.{codec}" for codec in CODECS))

    def __init__(
        self,
        urls: Urls,
        columns: Sequence[str] | None = None,
        *,
        split: str | None = None,
        decode: Mapping[str, Callable[[bytes], object]] | None = None,
        transform: Transform | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
    ) -> None:
        self.columns = None if columns is None else tuple(listed("MDSDataset", "columns", columns))
        self._layouts: dict[Columns, _Layout] = {}
        super().__init__(urls, split=split, decode=decode, transform=transform, max_open=max_open, storage=storage)

    def read_folder(self, folder: str) -> list[Listed]:
        return read_index(folder, self.storage)

    def check_layouts(self, entries: Mapping[str, Listed]) -> None:
        """Raise a ShardError if a wanted column is missing, has no decoder, or differs in encoding between shards."""
        first: tuple[str, dict[str, str]] | None = None
        for shard, entry in entries.items():
            columns: Columns = entry.layout
            if columns in self._layouts:
                continue
            self._layouts[columns] = self._layout(shard, columns)
            given = zip(columns.names, columns.encodings, strict=True)
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

    def open(self, shard: str, index: ShardIndex) -> _OpenShard:
        file = self.open_plain(shard)
        try:
            return _OpenShard(file, self.read_bounds(shard, file), self._layouts[self._entries[shard].layout])
        except BaseException:
            file.close()
            raise

    def read(self, handle: _OpenShard, rows: Int64Array, index: ShardIndex) -> Sequence[dict[str, object]]:
        starts, ends = handle.bounds[rows].tolist(), handle.bounds[rows + 1].tolist()
        content, places = handle.file.read_together(starts, ends)
        sizes = [end - start for start, end in zip(starts, ends, strict=True)]
        return [
            _decode(handle, content[place : place + size], row)
            for place, size, row in zip(places, sizes, rows.tolist(), strict=True)
        ]

    def fingerprint(self) -> str:
        """Return a text of the uncompressed shards' names, sizes and numbers of samples, and of the wanted columns."""
        return super().fingerprint() + ("" if self.columns is None else f" columns {list(self.columns)}")


def _decode(handle: _OpenShard, content: memoryview, row: int) -> dict[str, object]:
    """Return a sample from its bytes: first the sizes of the values that have no fixed size, then all values.

    Raises:
        ShardError: If a value cannot be decoded.
    """
    layout = handle.layout
    sample: dict[str, object] = {}
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
