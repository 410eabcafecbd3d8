"""Tar shards in the WebDataset layout: consecutive files with the same key are one sample."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import ClassVar, TypeVar

from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.images.checks import MAX_PIXELS, check_max_pixels
from loaderkit.datasets.images.decode import decode_picture, decode_pictures
from loaderkit.datasets.images.decoders import PictureDecoder, check_decoder, decoder_fingerprint
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.index_finder import IndexFinder
from loaderkit.datasets.shards.npyheader import decode_npy
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.datasets.tar.decoders import (
    decode_msgpack,
    decode_npz,
    decode_packed,
    decode_pth,
    decode_ten,
    unpack_gzip,
)
from loaderkit.datasets.tar.energon import OpenIndexed, read_starts
from loaderkit.datasets.tar.index import TarTable, index_tar
from loaderkit.datasets.tar.open_shard import Block, OpenTar, find_file, to_samples
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, shard_name
from loaderkit.system.arrays import Int64Array
from loaderkit.system.digests import digest

Decoder = Callable[[bytes], object]
T = TypeVar("T")
_ENERGON = "energon-1"  # kind of an index that has only the samples' starts


DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm"), decode_picture),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id", "count"), int),
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": decode_npy,
    "npz": decode_npz,
    "pth": decode_pth,
    **dict.fromkeys(("ten", "tb"), decode_ten),
    **dict.fromkeys(("mp", "msg"), decode_msgpack),
    "gz": unpack_gzip,  # then by what stands before: "json.gz"
}


class TarDataset(ShardedDataset[OpenTar | OpenIndexed]):
    """Samples in tar shards, as webdataset and GNU tar write them.

    A sample is a dict such as `{"__key__": "dir/0001", "jpg": ..., "cls": ...}`. The key is the path up to the first dot of
    the file's name. The rest, in lower case, is the extension. The dataset skips directories, hidden files, files without
    an extension, and metadata (paths that start with `__name__`). It reads by seeking and unpacks nothing to disk.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        decode: Decoders by extension (`seg.png`) or by its last part (`png`); each takes the file's bytes. A file without
            a decoder stays bytes. So do `pyd`, `pickle` and `pkl`, as unpickling runs code that is in the file. `DECODERS` unpack
            what ends in `.gz`, and then decode it (`json.gz`). None decodes nothing. `DECODERS | {"jpg": mine}` changes one decoder.
        max_pixels: The largest picture that `DECODERS` decode, width times height; None for any.
        decoder: What decodes JPEG in `DECODERS`: "torchvision", "torchcodec" or "pillow". The first two give the same
            pixels. None is torchcodec if it is installed, else torchvision. Pillow decodes other formats. A run must
            resume with the same decoder.
        transform: Called with each decoded sample; its result replaces the sample.
        index_dir: Folder of the index files. None: LOADERKIT_INDEX_DIR, else `~/.cache/loaderkit/index`.
        max_open: Shards that a process keeps open, with all its threads.
        storage: How to reach remote files, and where to keep copies.
        split: Name of the split to read, for a folder that Megatron Energon prepared. `.nv-meta/split.yaml` lists its
            files, and the files and samples to leave out.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a shard is not a complete, uncompressed tar archive in this layout. On reading: if a file cannot be
            decoded, or the shard has changed.

    Examples:
        Pictures decode to uint8 (3, H, W). The default batch stacks numbers and pictures, and keeps keys and texts in lists.

        >>> samples = [{"cls": label, "png": np.zeros((3, 8, 6), dtype=np.uint8)} for label in (3, 1)]
        >>> _ = lk.write_shards(samples, "train", format="tar", jobs=1)
        >>> dataset = lk.TarDataset("train/*.tar")
        >>> dataset[0]["__key__"], dataset[0]["cls"], dataset[0]["png"].shape
        ('000000000', 3, torch.Size([3, 8, 6]))
        >>> batch = next(iter(lk.Loader(dataset, batch_size=2)))
        >>> batch["cls"], batch["png"].shape, batch["png"].dtype
        (tensor([3, 1]), torch.Size([2, 3, 8, 6]), torch.uint8)
    """

    kind = "tar-2"
    suffixes: ClassVar[tuple[str, ...]] = (".tar",)

    def __init__(
        self,
        urls: Urls,
        *,
        decode: Mapping[str, Decoder] | None = DECODERS,
        max_pixels: int | None = MAX_PIXELS,
        decoder: PictureDecoder | None = None,
        transform: Transform | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
        split: str | None = None,
    ) -> None:
        check_max_pixels("TarDataset", max_pixels)
        check_decoder("TarDataset", decoder)
        self._split = split
        super().__init__(
            urls, transform=transform, index_dir=index_dir, max_open=max_open, storage=storage, split=split
        )
        self._decode, self._max_pixels, self.decoder = dict(decode or {}), max_pixels, decoder

    def _parts(self) -> list[object]:
        known = set(map(id, DECODERS.values()))
        return [*super()._parts(), *(decode for decode in self._decode.values() if id(decode) not in known)]

    def scan(self, shard: str) -> tuple[int, Int64Array]:
        """Return a shard's number of samples, and its packed `TarTable`."""
        with self.files.open(shard) as file:
            table = index_tar(file, self.files.stat(shard).size_bytes, shard)
        return len(table.ends), table.pack()

    def given_index(self, shard: str) -> ShardIndex | None:
        """Return the index that Energon wrote for a shard of a split, unless samples are left out by key."""
        if self._split is None or shard in self.excluded_keys:
            return None
        found = self.files.stat(shard)
        starts = read_starts(shard, found, self.storage)
        if starts is None:
            return None
        return ShardIndex(kind=_ENERGON, count=len(starts) - 1, offsets=starts, **found._asdict())

    @property
    def gives_indexes(self) -> bool:
        return self._split is not None

    def find_indexes(self, finder: IndexFinder) -> list[ShardIndex]:
        indexes = super().find_indexes(finder)
        for part, shard in enumerate(self.shards):
            if keys := self.excluded_keys.get(shard):
                index = indexes[part].loaded()
                table = TarTable.unpack(index.spans(shard)).without(shard, keys)
                indexes[part] = dataclasses.replace(index, count=len(table.ends), offsets=table.pack())
        return indexes

    def fingerprint(self) -> str:
        """Return the shards' names and counts, the samples that a split leaves out, and Pillow if it decodes."""
        left_out = sorted((shard_name(shard), sorted(keys)) for shard, keys in self.excluded_keys.items())
        found = super().fingerprint() + (f" without {digest(json.dumps(left_out).encode())}" if left_out else "")
        return found + decoder_fingerprint(self.decoder)

    @staticmethod
    def has_offsets(index: ShardIndex) -> bool:
        if index.offsets is None or index.offsets.ndim != 1:
            return False
        try:
            return TarTable.unpack(index.offsets).fits(index.count, index.size_bytes)
        except (ValueError, RecursionError):
            return False

    @staticmethod
    def start_and_key(index: ShardIndex, row: int) -> tuple[int | None, str | None]:
        if index.offsets is None:
            return None, None
        if index.kind == _ENERGON:
            return int(index.offsets[row]), None
        [key], _, (offsets, *_) = TarTable.unpack(index.offsets).samples([row])
        return offsets[0], key

    def open(self, shard: str, index: ShardIndex) -> OpenTar | OpenIndexed:
        if index.kind == _ENERGON:
            return OpenIndexed(shard, self.opened.open_soon(shard), index.spans(shard))
        table = TarTable.unpack(index.spans(shard))
        return OpenTar(shard, self.opened.open_soon(shard), table)

    def read(self, handle: OpenTar | OpenIndexed, rows: Int64Array, index: ShardIndex) -> Sequence[dict[str, object]]:
        return [sample for block in handle.read(rows.tolist()) for sample in to_samples(self._decode_all([block]))]

    def read_columns(self, indices: Sequence[int] | Int64Array) -> dict[str, list[object]] | list[dict[str, object]]:
        """Return decoded samples (B,): a list per field if all samples have the same fields, else a list of samples.

        Raises:
            IndexError: If an index is not in the dataset.
            ShardError: If a shard has changed, or a file cannot be decoded.
        """
        parts = {part: (places.tolist(), rows.tolist()) for part, places, rows in self.to_read(indices)}
        blocks = [block for part, (_, rows) in parts.items() for block in self.handle(part).read(rows)]
        if len({block.extensions for block in blocks}) == 1:
            columns = self._decode_all(blocks)
            return columns if len(parts) == 1 else dict(zip(columns, _to_order(parts, *columns.values()), strict=True))
        samples = [sample for block in blocks for sample in to_samples(self._decode_all([block]))]
        (found,) = _to_order(parts, samples)
        return found

    def _decode_all(self, blocks: Sequence[Block]) -> dict[str, list[object]]:
        """Decode samples with the same fields (B,), field by field. Return a list (B,) for each field."""
        columns: dict[str, list[object]] = {"__key__": [key for block in blocks for key in block.keys]}
        for number, name in enumerate(blocks[0].extensions):
            contents = list(chain.from_iterable(block.files(number) for block in blocks))
            values: list[object] = []
            try:
                self._decode_field(name, contents, values)
            except (ImportError, MemoryError):  # not the file's fault
                raise
            except Exception as error:
                shard, key, offset = find_file(blocks, number, len(values))
                what = f"{key}.{name} can't be decoded, {type(error).__name__}: {error}"
                raise ShardError(f"{shard}, offset {offset:,}: {what}") from error
            columns[name] = values
        return columns

    def _decode_field(self, name: str, contents: Sequence[memoryview], values: list[object]) -> None:
        """Decode files with one extension and append the results to `values`."""
        decode = self._decoder(name)
        if decode is decode_picture:
            with contextlib.suppress(ValueError):  # the loop below finds the file that fails
                values += decode_pictures(contents, max_pixels=self._max_pixels, decoder=self.decoder)
                return
        packed = decode is unpack_gzip
        if packed:
            decode = self._decoder(name.rpartition(".")[0])
        are_pictures = decode is decode_picture
        if are_pictures:
            decode = partial(decode_picture, max_pixels=self._max_pixels, decoder=self.decoder)
        if packed:
            decode = partial(decode_packed, decode=decode)
        for content in map(bytes, contents):
            values.append(content if decode is None else decode(content))

    def _decoder(self, name: str) -> Decoder | None:
        return self._decode.get(name) or self._decode.get(name.rpartition(".")[2])


def _to_order(parts: Mapping[int, tuple[list[int], list[int]]], *columns: list[T]) -> list[list[T]]:
    """Sort columns (B,) that were read shard by shard into the order of the batch."""
    places = [place for part, _ in parts.values() for place in part]
    back = sorted(range(len(places)), key=places.__getitem__)
    return [list(map(column.__getitem__, back)) for column in columns]
