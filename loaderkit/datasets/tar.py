"""Tar shards in the WebDataset layout, read by seeking: a sample is the files of one key, in sequence."""

import contextlib
import io
import json
import os
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from operator import add
from typing import Any, BinaryIO, ClassVar

import numpy as np

from loaderkit.datasets.index import ShardError, ShardIndex
from loaderkit.datasets.lines import LineFile
from loaderkit.datasets.pictures import decode_picture, decode_pictures
from loaderkit.datasets.sharded import ShardedDataset
from loaderkit.datasets.storage import Storage
from loaderkit.datasets.tartable import TarTable, group
from loaderkit.datasets.tarwalk import walk
from loaderkit.datasets.urls import Urls
from loaderkit.seeding import Int64Array

Decoder = Callable[[bytes], Any]


def _decode_text(data: bytes) -> str:
    return data.decode()


def _decode_array(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm"), decode_picture),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id", "count"), int),
    **dict.fromkeys(("txt", "text", "transcript"), _decode_text),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _decode_array,
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
        max_open: Shards kept open in a process.
        storage: How remote files are reached, and where copies of them are kept.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a shard is not a whole, uncompressed tar archive in this
            layout; when read, if a file can't be decoded or the shard has changed.
    """

    kind = "tar-1"
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

    @property
    def draws_nothing(self) -> bool:
        known = set(map(id, DECODERS.values()))
        return self.transform is None and all(id(decode) in known for decode in self._decode.values())

    def scan(self, shard: str) -> tuple[int, Int64Array]:
        """Walk through a shard's headers."""
        with self.open_file(shard) as file:
            table = group(walk(file, self.stat(shard).size_bytes, shard), shard)
        return len(table.ends), table.pack()

    def open(self, shard: str, index: ShardIndex) -> "_OpenTar":
        """Open a shard, if it is still the one that was indexed."""
        if not index.fits(self.stat(shard)):
            raise ShardError(f"{shard}: changed since it was indexed. Make the dataset anew, which indexes it again.")
        return _OpenTar(shard, self.open_file(shard), index)

    def read(self, handle: "_OpenTar", rows: Int64Array, index: ShardIndex) -> list[dict[str, Any]]:
        """Read samples in the order in which they lie, those near each other at once; and decode them."""
        keys, counts, (places, sizes, numbers) = handle.table.samples(rows.tolist())
        contents = handle.file.read(places, list(map(add, places, sizes)))
        names = handle.table.extensions
        starts = [0, *accumulate(counts)]
        if numbers == numbers[: counts[0]] * len(keys):  # all samples have the same files: column by column
            step = counts[0]
            columns = [
                self._decode_all(handle, names[number], contents[at::step], keys, places[at::step])
                for at, number in enumerate(numbers[:step])
            ]
            fields = ["__key__", *(names[number] for number in numbers[:step])]
            return [dict(zip(fields, values, strict=True)) for values in zip(keys, *columns, strict=True)]
        samples: list[dict[str, Any]] = []
        for key, (first, last) in zip(keys, pairwise(starts), strict=True):
            sample: dict[str, Any] = {"__key__": key}
            for at in range(first, last):
                name = names[numbers[at]]
                sample[name] = self._decode_all(handle, name, contents[at : at + 1], [key], places[at:])[0]
            samples.append(sample)
        return samples

    def _decode_all(
        self, handle: "_OpenTar", name: str, contents: list[bytes], keys: list[str], places: list[int]
    ) -> list[Any]:
        """Decode files of one extension."""
        decode = self._decode.get(name) or self._decode.get(name.rpartition(".")[2])
        if decode is None:
            return contents
        found: list[Any] = []
        if decode is decode_picture:
            with contextlib.suppress(ValueError):  # said below, with the picture's place
                return list(decode_pictures(contents))
        try:
            for content in contents:
                found.append(decode(content))  # noqa: PERF401 - its length says which one failed
        except Exception as error:
            what = f"{keys[len(found)]}.{name} can't be decoded, {type(error).__name__}: {error}"
            raise ShardError(f"{handle.shard}, offset {places[len(found)]:,}: {what}") from error
        return found


class _OpenTar:
    """A shard's file, and the table of its samples."""

    def __init__(self, shard: str, file: BinaryIO, index: ShardIndex) -> None:
        if index.offsets is None:
            file.close()
            raise ShardError(f"{shard}: its index has no offsets. Delete the index, it is made again.")
        self.shard = shard
        self.table = TarTable.unpack(index.offsets)
        self.file = LineFile(shard, file)

    def close(self) -> None:
        """Close the file."""
        self.file.close()
