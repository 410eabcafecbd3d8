"""Tar shards in the WebDataset layout, read by seeking: a sample is the files of one key, in sequence."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.images.pictures import decode_picture, decode_pictures
from loaderkit.datasets.remote.storage import Storage
from loaderkit.datasets.remote.urls import Urls
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.npyheader import decode_npy
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.datasets.tar.index import index_tar
from loaderkit.datasets.tar.open_shard import Block, OpenTar, place_of, to_samples
from loaderkit.seeding.draws import Draws, draws
from loaderkit.system.arrays import Int64Array

Decoder = Callable[[bytes], Any]


def _decode_text(data: bytes) -> str:
    return data.decode()


DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm"), decode_picture),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id", "count"), int),
    **dict.fromkeys(("txt", "text", "transcript"), _decode_text),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": decode_npy,
}


class TarDataset(ShardedDataset):
    """Samples in tar shards, as webdataset and GNU tar write them.

    A sample is `{"__key__": "dir/0001", "jpg": ..., "cls": ...}`. The key is the
    name up to the first dot of its base name, the rest is the extension, in lower
    case. Directories, hidden files, files without an extension, and metadata
    (a path that starts with `__name__`) are skipped. Nothing is unpacked to disk.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        decode: From an extension, or what follows its last dot (`seg.png`, then
            `png`), to a function of the file's bytes. What it has no entry for
            stays bytes, and with None all does. `DECODERS | {"jpg": mine}` changes one.
        transform: From a decoded sample to a sample.
        index_dir: Where index files lie; beside local shards by default.
        max_open: Shards kept open by each thread that reads.
        storage: How remote files are reached, and where copies of them are kept.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a shard is not a whole, uncompressed tar archive in this
            layout; when read, if a file can't be decoded or the shard has changed.
    """

    kind = "tar-2"
    suffixes: ClassVar[tuple[str, ...]] = (".tar",)

    def __init__(
        self,
        urls: Urls,
        *,
        decode: Mapping[str, Decoder] | None = DECODERS,
        transform: Callable[[Any], Any] | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 128,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(urls, transform=transform, index_dir=index_dir, max_open=max_open, storage=storage)
        self._decode = dict(decode or {})
        known = set(map(id, DECODERS.values()))
        others = [draws(decode) for decode in self._decode.values() if id(decode) not in known]
        self._decoders_draw = max(others, default=Draws.NOTHING)

    def _draws(self) -> Draws:
        return max(super()._draws(), self._decoders_draw)

    def scan(self, shard: str) -> tuple[int, Int64Array]:
        """Walk through a shard's headers."""
        with self.open_file(shard) as file:
            table = index_tar(file, self.stat(shard).size_bytes, shard)
        return len(table.ends), table.pack()

    def open(self, shard: str, index: ShardIndex) -> OpenTar:
        """Open a shard, if it is still the one that was indexed."""
        self.refuse_change(shard, index)
        return OpenTar(shard, self.open_file(shard), index)

    def read(self, handle: OpenTar, rows: Int64Array, index: ShardIndex) -> list[dict[str, Any]]:
        """Read and decode samples of a shard."""
        return [sample for block in handle.read(rows.tolist()) for sample in to_samples(self._decode_all([block]))]

    def read_columns(self, indices: Sequence[int]) -> dict[str, list[Any]] | list[dict[str, Any]]:
        """Return decoded samples (B,) as a list for each field, where all have the same; else as samples.

        Raises:
            IndexError: If an index is not in the dataset.
            ShardError: If a shard has changed, or a file can't be decoded.
        """
        parts = self.locate(indices)
        blocks = [block for part, (_, rows) in parts.items() for block in self.handle(part).read(rows)]
        if len({block.names for block in blocks}) == 1:
            columns = self._decode_all(blocks)
            return columns if len(parts) == 1 else dict(zip(columns, _to_order(parts, *columns.values()), strict=True))
        samples = [sample for block in blocks for sample in to_samples(self._decode_all([block]))]
        (found,) = _to_order(parts, samples)
        return found

    def _decode_all(self, blocks: Sequence[Block]) -> dict[str, list[Any]]:
        """Decode samples of the same fields, field by field."""
        columns: dict[str, list[Any]] = {"__key__": [key for block in blocks for key in block.keys]}
        for number, name in enumerate(blocks[0].names):
            contents = list(chain.from_iterable(block.files(number) for block in blocks))
            values: list[Any] = []
            try:
                self._decode_field(name, contents, values)
            except (ImportError, MemoryError):  # not the file's fault
                raise
            except Exception as error:
                shard, key, place = place_of(blocks, number, len(values))
                what = f"{key}.{name} can't be decoded, {type(error).__name__}: {error}"
                raise ShardError(f"{shard}, offset {place:,}: {what}") from error
            columns[name] = values
        return columns

    def _decode_field(self, name: str, contents: Sequence[memoryview], values: list[Any]) -> None:
        """Decode files of one extension, and add each to the values."""
        decode = self._decode.get(name) or self._decode.get(name.rpartition(".")[2])
        if decode is decode_picture:
            with contextlib.suppress(ValueError):  # said below, as the number of values says which one it is
                values += decode_pictures(contents)
                return
        for content in map(bytes, contents):
            values.append(content if decode is None else decode(content))


def _to_order(parts: Mapping[int, tuple[list[int], list[int]]], *columns: list[Any]) -> list[list[Any]]:
    """Put columns (B,) that were read shard by shard in the order of their indices."""
    places = [place for part, _ in parts.values() for place in part]
    back = sorted(range(len(places)), key=places.__getitem__)
    return [list(map(column.__getitem__, back)) for column in columns]
