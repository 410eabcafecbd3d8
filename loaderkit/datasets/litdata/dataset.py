"""Read datasets in litdata's format. Samples are decoded as litdata decodes them.

A sample is a tree of dicts, lists and tuples. Its leaves are the values, each encoded by itself.
"""

import dataclasses
import json
import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.litdata.chunks import (
    ARROW_END,
    ARROW_MAGIC,
    FRAME,
    FRAMED_HEAD,
    FRAMED_MAGIC,
    ArrowChunk,
    Chunk,
    FramedChunk,
    PlainChunk,
)
from loaderkit.datasets.litdata.leaves import WAY_OUT, Decode, Tree, decoder_of, tree_of
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.shards.listed import INDEX, Listed, ListedDataset, inner, join, natural
from loaderkit.files.foreign_formats import FORMATS
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, open_file
from loaderkit.system.arrays import Int64Array


class _Config(NamedTuple):
    """The part of index.json's config that describes samples."""

    formats: tuple[str, ...]  # of the leaves, in order
    spec: str  # the tree, as JSON
    level: str  # what is compressed as one: "" (nothing), "batch", "sample" or "chunk"


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    formats: tuple[str, ...]
    decoders: tuple[Decode, ...]
    tree: Tree
    sizes: str  # the format, for `struct`, of the sizes of all leaves
    keys: tuple[object, ...] | None  # the keys if a sample is a flat dict of leaves; else None

    def decode(self, content: memoryview, where: str, row: int) -> object:
        """Return a sample from its item, which has the sizes of all leaves in bytes, then the leaves.

        Raises:
            ShardError: If a leaf cannot be decoded. `where` and `row` are for its message.
        """
        values: list[object] = []
        try:
            at = 4 * len(self.decoders)
            for size, decode in zip(struct.unpack_from(self.sizes, content), self.decoders, strict=True):
                values.append(decode(content[at : at + size]))
                at += size
            if at != len(content):
                raise ValueError(f"its leaves have {at:,} bytes, wanted {len(content):,}")
        except (ImportError, MemoryError):  # not a fault of the file
            raise
        except Exception as error:
            leaf = self.formats[min(len(values), len(self.formats) - 1)]
            raise ShardError(
                f"{where}: sample {row}, leaf {len(values)} ({leaf}) can't be decoded, {type(error).__name__}: {error}."
            ) from error
        return self.tree.build(iter(values)) if self.keys is None else dict(zip(self.keys, values, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class _OpenChunk:
    chunk: Chunk
    layout: _Layout

    def close(self) -> None:
        self.chunk.close()


class LitDataset(ListedDataset):
    """Samples of the chunks that litdata's `optimize` writes.

    A sample is what `litdata.StreamingDataset` gives: dicts, lists and tuples of numbers, texts, bytes, tensors, arrays
    and pictures. A picture in litdata's format "pil" is a Pillow image, any other a uint8 tensor (3, H, W). Chunks
    may be plain or compressed with zstd, and may have Arrow rows. No index is made, and nothing is written into the
    folder. Chunks that are compressed as a whole are decompressed into the cache of `storage`, or into memory if there
    is no cache. Chunks of tokens, which litdata's `TokensLoader` reads, are for `lk.DocumentDataset`.

    Args:
        urls: A folder or URL with an index.json, or a list of them.
        decode: Functions that replace the usual decoders, by the format of a leaf, such as "jpeg" or
            "no_header_tensor:17". Each takes the leaf's bytes. `{"jpeg": bytes}` leaves pictures encoded.
            `{"pickle": pickle.loads}` reads pickles: only from a writer that you trust.
        transform: Called with each sample; its result replaces the sample.
        max_open: Chunks that a process keeps open, with all its threads.
        storage: How to reach remote folders, and where to keep copies and decompressed chunks.

    Raises:
        FileNotFoundError: If a folder has no index.json, or a chunk is missing.
        ShardError: If a chunk or index.json is cut or damaged, or the chunks are encrypted, or leaves are pickled or of
            an unknown format without a function in `decode`. On reading: if a leaf cannot be decoded.
        ImportError: If chunks have Arrow rows or zstd, and pyarrow is not installed.

    Examples:
        >>> dataset = lk.LitDataset("s3://bucket/chunks")  # doctest: +SKIP
        >>> dataset[0]  # doctest: +SKIP
        {'image': tensor(...), 'label': 3}
    """

    kind = "litdata-1"
    suffixes: ClassVar[tuple[str, ...]] = ()
    shared_suffixes: ClassVar[tuple[str, ...]] = (".bin",)

    def __init__(
        self,
        urls: Urls,
        *,
        decode: Mapping[str, Callable[[bytes], object]] | None = None,
        transform: Transform | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
    ) -> None:
        self._layouts: dict[_Config, _Layout] = {}
        super().__init__(urls, split=None, decode=decode, transform=transform, max_open=max_open, storage=storage)

    def read_folder(self, folder: str) -> list[Listed]:
        place = join(folder, INDEX)
        try:
            with open_file(place, self.storage) as file:
                content = file.read()
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{place} is not there, wanted {FORMATS['litdata'].name}: a folder with {INDEX} and chunks."
            ) from error
        try:
            index = json.loads(content)
            _refuse_other(place, index["config"], index["chunks"])
            config = _config(place, index["config"])
            self._layouts.setdefault(config, self._layout(place, config))
            return [_listed(chunk, config) for chunk in index["chunks"]]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, ShardError):
                raise
            raise ShardError(
                f"{place}: not the index of {FORMATS['litdata'].name} ({type(error).__name__}: {error}). It may be cut or damaged."
            ) from error

    def check_layouts(self, entries: Mapping[str, Listed]) -> None:
        """Raise a ShardError unless the samples of all folders have the same structure."""
        first: tuple[str, Tree] | None = None
        for shard, entry in entries.items():
            tree = self._layouts[entry.layout].tree
            if first is not None and tree != first[1]:
                raise ShardError(
                    f"{shard}: has samples of another structure than {first[0]}, wanted the same in all. Join two datasets that "
                    "make equal samples: lk.ConcatDataset."
                )
            first = first or (shard, tree)

    def _layout(self, place: str, config: _Config) -> _Layout:
        tree = tree_of(config.spec, place)
        decoders = tuple(decoder_of(form, self._own, place) for form in config.formats)
        if tree.count() != len(decoders):
            raise ValueError(f"{len(decoders)} formats of {tree.count()} leaves")
        is_flat = tree.kind == "dict" and not any(child.kind for child in tree.children)
        return _Layout(config.formats, decoders, tree, f"<{len(decoders)}I", tree.keys if is_flat else None)

    def open(self, shard: str, index: ShardIndex) -> _OpenChunk:
        entry = self._entries[shard]
        file = self.open_plain(shard)
        try:
            return _OpenChunk(self._open_chunk(shard, entry, file), self._layouts[entry.layout])
        except BaseException:
            file.close()
            raise

    def _open_chunk(self, shard: str, entry: Listed, file: LineFile) -> Chunk:
        if entry.layout.level == "batch":
            return self._open_framed(shard, entry, file)
        bounds = self.read_bounds(shard, file)
        if bounds[-1] + ARROW_END.size <= entry.size_bytes:
            size, magic = ARROW_END.unpack(
                self.read_head(shard, file, entry.size_bytes - ARROW_END.size, entry.size_bytes)
            )
            start = entry.size_bytes - ARROW_END.size - size
            if magic == ARROW_MAGIC and start >= bounds[-1]:
                return ArrowChunk(file, self._arrow_file(shard, file, start, start + size), entry.samples)
        if bounds[-1] != entry.size_bytes:
            raise ShardError(
                f"{shard}: its samples end at byte {bounds[-1]:,} of {entry.size_bytes:,}, wanted the last one, or Arrow rows after "
                "them. It is damaged."
            )
        return PlainChunk(file, bounds, packed=entry.layout.level == "sample")

    def _arrow_file(self, shard: str, file: LineFile, start: int, stop: int) -> memoryview:
        """Return a shard's bytes from `start` to `stop`: memory-mapped from a local file or copy, else read."""
        descriptor = file.descriptor
        if descriptor is None:
            return memoryview(self.read_head(shard, file, start, stop))
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))[start:stop]

    def _open_framed(self, shard: str, entry: Listed, file: LineFile) -> FramedChunk:
        size = entry.size_bytes
        head = self.read_head(shard, file, 0, min(FRAMED_HEAD.size, size))
        magic, version, _, items, _, count = FRAMED_HEAD.unpack(head.ljust(FRAMED_HEAD.size, b"\0"))
        start = FRAMED_HEAD.size + 4 * (items + 1)
        end = start + count * FRAME.itemsize
        if magic != FRAMED_MAGIC or version != 1 or items != entry.samples or end > size:
            raise ShardError(
                f"{shard}: begins with {magic!r}, version {version} and {items:,} samples, wanted {FRAMED_MAGIC!r}, version 1 and "
                f"{entry.samples:,}. It is cut or damaged, or a newer litdata wrote it."
            )
        content = self.read_head(shard, file, FRAMED_HEAD.size, end)
        bounds = np.frombuffer(content, "<u4", items + 1).astype(np.int64)
        frames = np.frombuffer(content, FRAME, count, 4 * (items + 1))
        ends = np.cumsum(frames["items"], dtype=np.int64)
        firsts = ends - frames["items"]
        is_sound = (
            count > 0
            and ends[-1] == items
            and (firsts == frames["first"]).all()
            and (frames["start"].astype(np.int64) + frames["packed"] <= size).all()
            and (np.diff(bounds) >= 0).all()
            and (bounds[ends] - bounds[firsts] == frames["size"]).all()
        )
        if not is_sound:
            raise ShardError(f"{shard}: its table of frames does not fit its {items:,} samples. It is damaged.")
        return FramedChunk(file, bounds, frames)

    def read(self, handle: _OpenChunk, rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        chunk, layout = handle.chunk, handle.layout
        return chunk.samples(rows, lambda content, row: layout.decode(content, chunk.file.shard, row))


def _config(place: str, config: Mapping[str, Any]) -> _Config:
    codec = str(config.get("compression") or "").partition(":")[0]
    level = str(config.get("compression_level") or "chunk") if codec else ""
    if codec not in ("", "zstd") or level not in ("", "batch", "sample", "chunk"):
        raise ShardError(f"{place}: the chunks are compressed with {codec!r} by {level!r}, wanted zstd. {WAY_OUT}")
    return _Config(tuple(map(str, config["data_format"])), str(config["data_spec"]), level)


def _refuse_other(place: str, config: Mapping[str, object], chunks: list[Mapping[str, object]]) -> None:
    if config.get("encryption"):
        raise ShardError(f"{place}: the chunks are encrypted. {WAY_OUT}")
    loader = config.get("item_loader") or "PyTreeLoader"
    if loader == "TokensLoader" or (chunks and chunks[0].get("dim") is not None):
        raise ShardError(f"{place}: the chunks have tokens. Read them with lk.DocumentDataset(folder).")
    if loader != "PyTreeLoader" or config.get("format"):
        raise ShardError(
            f"{place}: the chunks are for {config.get('format') or loader}, wanted samples of litdata's PyTreeLoader. {WAY_OUT}"
        )


def _listed(chunk: Mapping[str, object], config: _Config) -> Listed:
    name, size, samples = inner(chunk["filename"]), natural(chunk["chunk_bytes"]), natural(chunk["chunk_size"])
    if config.level == "chunk":
        return Listed("", size, samples, config, packed=name, codec="zstd")
    return Listed(name, size, samples, config)
