"""Find the records of a TFRecord file (tensorflow/core/lib/io).

Each record is stored as its length, the length's checksum, the record, and the record's checksum.
"""

import importlib
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.system.arrays import Int64Array

HEAD, FOOT = 12, 4  # bytes before and after a record
_BLOCK = 1 << 16  # bytes of one read if records are short
_MASK = 0xA282EAD8
_UNPACK = {
    "GZIP": "gzip -dc FILE > NEW",
    "ZLIB": "python -c 'import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))' < FILE > NEW",
}
Checksum = Callable[[bytes], int]


def scan_records(file: BinaryIO, size_bytes: int, shard: str) -> Int64Array:
    """Return the start and end of each record in bytes (N, 2), after checking the checksums of the lengths.

    Raises:
        ShardError: If the file is compressed, cut, damaged, or not of this format.
    """
    heads: list[bytes] = []
    ends: list[int] = []
    block, first, at, length = b"", 0, 0, 0
    while at < size_bytes:
        if at + HEAD > first + len(block):
            file.seek(at)
            block, first = file.read(_BLOCK if length < _BLOCK // 8 else HEAD), at
        head = block[at - first : at - first + HEAD]
        length = int.from_bytes(head[:8], "little")
        if len(head) < HEAD or at + HEAD + length + FOOT > size_bytes:
            break
        heads.append(head)
        at += HEAD + length + FOOT
        ends.append(at - FOOT)
    bad = _first_bad_head(heads if at >= size_bytes else [*heads, head])
    if bad is not None:
        raise _no_record(shard, ends[bad - 1] + FOOT if bad else 0, [*heads, head][bad])
    if at < size_bytes:
        raise ShardError(
            f"{shard}: the record at byte {at:,} is cut: it has {length:,} bytes, the file ends at {size_bytes:,}. "
            "Copy the file again, or wait until it is written."
        )
    starts = [end - int.from_bytes(head[:8], "little") for head, end in zip(heads, ends, strict=True)]
    return np.array([starts, ends], dtype=np.int64).T.reshape(-1, 2)


def find_checksum() -> Checksum | None:
    """Return a function for a record's masked CRC-32C; None if neither google-crc32c nor crc32c is installed."""
    for module, name in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        try:
            crc = getattr(importlib.import_module(module), name)
        except ImportError:
            continue
        return lambda record: _masked(crc(record))
    return None


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _first_bad_head(heads: list[bytes]) -> int | None:
    """Return the index of the first header whose length has a wrong checksum; None if all are right."""
    rows = np.frombuffer(b"".join(head.ljust(HEAD, b"\0") for head in heads), np.uint8).reshape(-1, HEAD)
    crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for byte in rows[:, :8].T:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> np.uint32(8)
    crc ^= np.uint32(0xFFFFFFFF)
    masked = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(_MASK)
    wrong = np.flatnonzero(masked != np.ascontiguousarray(rows[:, 8:]).view("<u4")[:, 0])
    return int(wrong[0]) if len(wrong) else None


def _table() -> np.ndarray[Any, np.dtype[np.uint32]]:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> np.uint32(1) ^ np.uint32(0x82F63B78), crc >> np.uint32(1))
    return crc


_TABLE = _table()


def _no_record(shard: str, at: int, head: bytes) -> ShardError:
    packed = None if at else _packer(head)
    if packed is not None:
        return ShardError(
            f"{shard}: compressed with {packed}, as TFRecordOptions({packed!r}) writes, so records have no fixed place. Unpack it, and "
            f"read the new file: {_UNPACK[packed]}"
        )
    what = "the file is damaged there" if at else "not a TFRecord file, or damaged"
    return ShardError(f"{shard}: no record at byte {at:,}: {what}. The checksum of a length is wrong.")


def _packer(head: bytes) -> str | None:
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    (start,) = struct.unpack_from(">H", head.ljust(2, b"\0"))
    return "ZLIB" if head[:1] == b"\x78" and start % 31 == 0 else None
