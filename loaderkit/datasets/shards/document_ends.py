"""Where documents end in files of tokens: the layouts of datatrove, Megatron and litdata."""

import json
import os
import struct
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.ragged import Ends
from loaderkit.datasets.shards.mapped import count_numbers
from loaderkit.system.types import Array, DType

_END = np.dtype("<i8")  # datatrove has uint64: as int64, a number that is too large is negative
_MAGIC, _HEADER = b"MMIDIDX\0\0", struct.Struct("<9sQBQQ")  # magic, version, dtype, sequences, documents + 1
_MEGATRON = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}  # the other codes are not integers
# litdata's codes of dtypes. Some have two codes, because torch has two names for them.
_LITDATA = {
    11: "uint8",
    12: "int8",
    13: "int16",
    14: "int16",
    15: "int32",
    16: "int32",
    17: "int64",
    18: "int64",
    20: "uint16",
}


class DocumentEnds(NamedTuple):
    """Where the documents of one file end.

    Attributes:
        ends: Ends of the documents, counted in tokens (N,).
        dtype: The tokens' dtype; None if the files do not declare it.
        start: First byte of the tokens.
    """

    ends: Ends
    dtype: DType | None = None
    start: int = 0


def datatrove_ends(path: str, file: BinaryIO, metadata: BinaryIO | None) -> DocumentEnds:
    """Read datatrove's file of ends (uint64, little-endian), and the tokens' size from `NAME|BYTES` in the metadata."""
    count = count_numbers(path, file, _END, "uint64 ends")
    ends = np.asarray(np.memmap(file, dtype=_END, mode="r")) if count else np.empty(0, _END)
    said = b"" if metadata is None else metadata.readline().strip().rpartition(b"|")[2]
    dtype = {b"2": "<u2", b"4": "<u4"}.get(said)
    return DocumentEnds(ends, None if dtype is None else np.dtype(dtype))


def megatron_ends(path: str, file: BinaryIO) -> DocumentEnds:
    """Read the `.idx` file that Megatron's `IndexedDatasetBuilder` writes. Its arrays stay memory-mapped."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise ShardError(f"{path}: begins with {head[:9]!r}, wanted the index of a Megatron dataset, {_MAGIC!r}.")
    _, version, code, sequences, bounds = _HEADER.unpack(head)
    if version != 1 or code not in _MEGATRON:
        raise ShardError(
            f"{path}: has version {version} and dtype code {code}, wanted version 1 and one of {sorted(_MEGATRON)}: integers."
        )
    wanted = _HEADER.size + 12 * sequences + 8 * bounds
    if size not in (wanted, wanted + sequences) or not bounds:  # a multimodal dataset has a byte more for each sequence
        raise ShardError(f"{path}: has {size:,} bytes, its header says {wanted:,}. It is cut or damaged.")
    content = np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))[_HEADER.size : wanted]
    parts = np.split(content, [4 * sequences, 12 * sequences])
    sizes, pointers, documents = (part.view(kind) for part, kind in zip(parts, ("<i4", "<i8", "<i8"), strict=True))
    if documents[0] or documents[-1] != sequences:
        raise ShardError(
            f"{path}: its documents are the sequences {documents[0]:,} to {documents[-1]:,}, wanted all, 0 to {sequences:,}."
        )
    dtype = np.dtype(_MEGATRON[code]).newbyteorder("<")
    total = int(pointers[-1]) + int(sizes[-1]) * dtype.itemsize if sequences else 0
    return DocumentEnds(_MegatronEnds(path, pointers, documents[1:], total, dtype.itemsize), dtype)


def litdata_ends(path: str, file: BinaryIO, index: BinaryIO) -> DocumentEnds:
    """Read the head of a litdata chunk: the number of items, then where each begins and the last ends (uint32, bytes).

    `index` is the folder's index.json.
    """
    try:
        config = json.load(index)["config"]
        kind, _, number = ",".join(config["data_format"]).partition(":")
    except (ValueError, LookupError, TypeError) as error:
        raise ShardError(f"{path}: the index.json of its folder is not that of litdata: {error!r}.") from error
    if config.get("item_loader") == "PyTreeLoader":  # each item begins with the sizes of its leaves
        raise ShardError(f"{path}: a chunk of litdata with samples, wanted tokens. Read its folder with lk.LitDataset.")
    changed = [name for name in ("compression", "encryption") if config.get(name)]
    if kind != "no_header_tensor" or not number.isdecimal() or int(number) not in _LITDATA or changed:
        raise ShardError(
            f"{path}: a chunk of litdata with {config['data_format']} and {' and '.join(changed) or 'no compression'}, wanted "
            "one integer tensor for each document, and neither compression nor encryption. Read it with lk.LitDataset, or with "
            "litdata.StreamingDataset, and write it again with loaderkit.write_shards(format=loaderkit.TokenFormat())."
        )
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    (items,) = np.frombuffer(file.read(4).ljust(4, b"\0"), "<u4").tolist()
    start = 4 * (items + 2)
    offsets = np.frombuffer(file.read(start - 4) if start <= size else b"", "<u4").astype(np.int64)
    dtype = np.dtype(_LITDATA[int(number)]).newbyteorder("<")
    if (
        len(offsets) != items + 1
        or offsets[0] != start
        or offsets[-1] != size
        or ((offsets - start) % dtype.itemsize).any()
    ):
        raise ShardError(
            f"{path}: its {size:,} bytes are not the {items:,} samples of {dtype} that its head says. It is cut."
        )
    return DocumentEnds((offsets[1:] - start) // dtype.itemsize, dtype, start)


class _MegatronEnds:
    """The ends of documents (N,) in tokens, computed when they are indexed.

    They come from the byte at which each sequence begins (S,), and the sequence that follows each document (N,).
    """

    def __init__(self, path: str, pointers: Array, nexts: Array, total: int, itemsize: int) -> None:
        self._path, self._pointers, self._nexts, self._total, self._itemsize = path, pointers, nexts, total, itemsize

    def __len__(self) -> int:
        return len(self._nexts)

    def __getitem__(self, rows: Any) -> npt.NDArray[np.int64]:
        nexts = self._nexts[rows]
        count = len(self._pointers)
        if np.any(nexts < 0) or np.any(nexts > count):
            raise ShardError(
                f"{self._path}: a document ends at sequence {np.max(nexts):,} of {count:,}. It is damaged."
            )
        if not count:
            return np.zeros_like(nexts)
        ends = np.where(nexts < count, self._pointers[np.minimum(nexts, count - 1)], self._total)
        if np.any(ends % self._itemsize):
            raise ShardError(f"{self._path}: a document ends inside a token of {self._itemsize} bytes. It is damaged.")
        found: npt.NDArray[np.int64] = ends // self._itemsize
        return found
