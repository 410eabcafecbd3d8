"""PNG files of every kind, written byte by byte: Pillow writes neither 16-bit colours nor interlaced pictures."""

import struct
import zlib
from collections.abc import Iterator

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
KINDS = [
    (0, 1),
    (0, 2),
    (0, 4),
    (0, 8),
    (0, 16),
    (2, 8),
    (2, 16),
    (3, 1),
    (3, 2),
    (3, 4),
    (3, 8),
    (4, 8),
    (4, 16),
    (6, 8),
    (6, 16),
]
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_ADAM7 = [(0, 8, 0, 8), (0, 8, 4, 8), (4, 8, 0, 4), (0, 4, 2, 4), (2, 4, 0, 2), (0, 2, 1, 2), (1, 2, 0, 1)]


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def header(
    width: int, height: int, colour: int = 0, depth: int = 8, interlaced: bool = False, packing: int = 0
) -> bytes:
    """The signature and the first chunk. PNG knows only packing 0; libpng refuses others by an error, and Pillow does not look."""
    return SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, packing, 0, interlaced))


def row_sizes(width: int, height: int, colour: int, depth: int, interlaced: bool) -> Iterator[int]:
    """Yield the bytes of each row, without its filter's byte."""
    for top, down, left, right in _ADAM7 if interlaced else [(0, 1, 0, 1)]:
        columns = len(range(left, width, right))
        if columns:
            yield from [(columns * _CHANNELS[colour] * depth + 7) // 8] * len(range(top, height, down))


def png(
    colour: int,
    depth: int,
    *,
    size: tuple[int, int] = (13, 11),
    interlaced: bool = False,
    seen_through: bool = False,
    extra: bytes = b"",
    seed: int = 0,
) -> bytes:
    """Random pixels, with all of PNG's filters.

    Args:
        colour: PNG's number of the colour type.
        depth: Bits a channel.
        size: Width and height.
        interlaced: Whether in Adam7's order.
        seen_through: Whether a palette or one colour is transparent (tRNS).
        extra: Chunks in front of the pixels.
        seed: Of the pixels.
    """
    rng = np.random.default_rng(seed)
    rows = b"".join(bytes([rng.integers(0, 5)]) + rng.bytes(row) for row in row_sizes(*size, colour, depth, interlaced))
    if colour == 3:
        extra = chunk(b"PLTE", rng.bytes(3 << depth)) + extra
    if seen_through:
        extra += chunk(b"tRNS", {0: b"\0\1", 2: b"\0\1\0\2\0\3", 3: b"\0\x80"}[colour])
    packed = zlib.compress(rows)
    middle = len(packed) // 2
    content = chunk(b"IDAT", packed[:middle]) + chunk(b"IDAT", packed[middle:])
    return header(*size, colour, depth, interlaced) + extra + content + chunk(b"IEND")


def with_checksums(content: bytes) -> bytes:
    """Make each chunk's checksum fit its content, as far as the chunks can be found."""
    repaired, at = bytearray(content), 8
    while at + 12 <= len(repaired):
        end = at + 8 + int.from_bytes(repaired[at : at + 4], "big")
        if end + 4 > len(repaired):
            break
        repaired[end : end + 4] = struct.pack(">I", zlib.crc32(repaired[at + 4 : end]))
        at = end + 4
    return bytes(repaired)
