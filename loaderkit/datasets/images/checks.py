"""Check encoded pictures for what decoders do not check: the size before memory is allocated, and missing pixels."""

import struct
import zlib
from collections.abc import Iterator
from typing import Any

from loaderkit.system.checks import plain_integer

MAX_PIXELS = 89_478_485  # above this Pillow warns; as RGB this takes a quarter of a gibibyte
PNG = b"\x89PNG\r\n\x1a\n"
_MAX_SCANS = 100  # most scans of a progressive JPEG; writers make about 10
_BLOCK = 1 << 16  # bytes
_SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # SOF markers of JPEG
_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}
_BARE = {0x01, *range(0xD0, 0xD8)}  # JPEG markers without a length and content
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # number of channels for each of PNG's colour types
_ADAM7 = ((8, 0, 8, 0), (8, 0, 8, 4), (8, 4, 4, 0), (4, 0, 4, 2), (4, 2, 2, 0), (2, 0, 2, 1), (2, 1, 1, 0))


def check_max_pixels(owner: str, max_pixels: int | None) -> None:
    """Check a limit for the pixels of a picture.

    Raises:
        ValueError: If it is neither an integer of at least 1 nor None.
    """
    if max_pixels is not None and (not isinstance(plain_integer(max_pixels), int) or max_pixels < 1):
        raise ValueError(f"{owner}: max_pixels is {max_pixels!r}, wanted a number of at least 1, or None for no limit.")


def check_size(width: int, height: int, max_pixels: int | None) -> None:
    """Check the size of a picture.

    Raises:
        ValueError: If it has more than `max_pixels` pixels.
    """
    if max_pixels is not None and width * height > max_pixels:
        raise ValueError(
            f"its header claims {width:,} x {height:,} pixels, wanted at most max_pixels={max_pixels:,}. If the picture is "
            "right, give a larger max_pixels=."
        )


def jpeg_shape(data: bytes) -> tuple[int, int, int]:
    """Return the width, height and number of channels of a JPEG, from the same header that libjpeg reads.

    Raises:
        ValueError: If it has no such header, or more than 100 scans.
    """
    at = 2
    while True:
        at = data.find(b"\xff", at) + 1  # skip bytes between segments, as libjpeg does
        marker = data[at] if 0 < at < len(data) else None
        if marker is None or marker in (0xD9, 0xDA) or len(data) < at + 9:
            raise ValueError("it ends before its size")
        if marker in _SIZES:
            break
        if marker not in (0x00, 0xFF) and marker not in _BARE:
            at += 1 + max(2, int.from_bytes(data[at + 1 : at + 3], "big"))
        elif marker != 0xFF:
            at += 1
    if marker in _PROGRESSIVE and data.count(b"\xff\xda") > _MAX_SCANS:
        raise ValueError(f"it has more than {_MAX_SCANS} scans, wanted at most that; writers make about 10")
    height, width, channels = struct.unpack_from(">HHB", data, at + 4)
    return width, height, channels


def check_png(data: bytes, max_pixels: int | None) -> None:
    """Check the size of a PNG, and the checksums up to the last chunk of pixels, which Pillow does not compare.

    Raises:
        ValueError: If it has no header or more than `max_pixels` pixels, or a chunk is cut or does not fit its
            checksum.
    """
    if data[12:16] != b"IHDR" or len(data) < 33:
        raise ValueError("it does not begin with a header")
    width, height = struct.unpack_from(">II", data, 16)
    check_size(width, height, max_pixels)
    for _ in _png_pixels(data):
        pass


def check_png_rows(data: bytes) -> None:
    """Check that a PNG has as many rows as its header says; Pillow leaves missing rows black.

    Raises:
        ValueError: If rows are missing.
    """
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    wanted = 0
    for down, top, right, left in _ADAM7 if interlaced else ((1, 0, 1, 0),):
        columns, rows = len(range(left, width, right)), len(range(top, height, down))
        wanted += rows * (1 + (columns * _CHANNELS[colour] * depth + 7) // 8) if columns else 0
    unpack, found = zlib.decompressobj(), 0
    for part in _png_pixels(data):
        left_over: Any = part
        while left_over and found < wanted:
            found += len(unpack.decompress(left_over, _BLOCK))
            left_over = unpack.unconsumed_tail
    if found < wanted:
        raise ValueError(f"its pixels are {found:,} bytes, its header says {wanted:,}")


def _png_pixels(data: bytes) -> Iterator[memoryview]:
    """Yield the contents of a PNG's IDAT chunks.

    Raise a ValueError if a chunk up to the last of them is cut or damaged.
    """
    at, begun, view = len(PNG), False, memoryview(data)
    while len(data) >= at + 12:
        size, kind = struct.unpack_from(">I4s", data, at)
        if begun and kind != b"IDAT":
            return
        end = at + 8 + size
        if zlib.crc32(view[at + 4 : end]).to_bytes(4, "big") != data[end : end + 4]:
            raise ValueError(f"its chunk {kind!r} at byte {at:,} is cut or damaged")
        if kind == b"IDAT":
            begun = True
            yield view[at + 8 : end]
        at = end + 4
    raise ValueError(f"it is cut at byte {len(data):,}")
