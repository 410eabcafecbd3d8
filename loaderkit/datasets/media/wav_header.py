"""Recognize WAV files that hold plain PCM or floats, and so need no FFmpeg to decode."""

import os
import struct
from typing import BinaryIO

# Format tag, channels, sample rate, bytes per second, bytes of one sample of all channels, bits of a value.
_FORMAT = struct.Struct("<HHIIHH")
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_BITS = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
_MOST_CHUNKS = 64
# FFmpeg checks whether PCM is in truth another codec, as on CDs with DTS and in recordings of S/PDIF. Its marks:
_DISGUISES = (b"\xfe\x7f\x01\x80", b"\xff\x1f\x00\xe8", b"\x7f\xfe\x80\x01", b"\x1f\xff\xe8\x00", b"\x72\xf8\x1f\x4e")
_LOOKED_AT = 1 << 16  # first bytes of the data in which the marks are searched


def is_plain_wav(file: BinaryIO) -> bool:
    """Return whether a file is a WAV file with one chunk of data, of PCM or floats, and is as long as its header says.

    Other WAV files, such as unfinished ones, may still be readable by FFmpeg. This changes the position in the file.
    """
    chunks = _chunks(file)
    start, size = chunks.get(b"data", (0, 0))
    place, length = chunks.get(b"fmt ", (0, 0))
    if not size or length < _FORMAT.size:
        return False
    file.seek(place)
    fields = file.read(min(length, 40))
    tag, channels, rate, _, block, bits = _FORMAT.unpack_from(fields)
    if tag == _EXTENSIBLE and len(fields) == 40:
        used, tag = struct.unpack_from("<H4xH", fields, 18)
        if used != bits or tag != _PCM:  # torchcodec 0.17 reads floats in this header as integers
            return False
    if bits not in _BITS.get(tag, ()) or not channels or not rate or block != channels * bits // 8:
        return False
    if (tag, bits) != (_PCM, 16):
        return True
    file.seek(start)
    begin = file.read(min(size, _LOOKED_AT))
    return not any(each in begin for each in _DISGUISES)


def _chunks(file: BinaryIO) -> dict[bytes, tuple[int, int]]:
    """Return the first byte and the size in bytes of each chunk's content, by name.

    Return {} if chunks do not fill the file.
    """
    file.seek(0)
    head = file.read(12)
    end = file.seek(0, os.SEEK_END)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE" or abs(end - 8 - int.from_bytes(head[4:8], "little")) > 1:
        return {}
    place, found = 12, dict[bytes, tuple[int, int]]()
    for _ in range(_MOST_CHUNKS):
        if place + 1 >= end:  # one byte at the end may be padding
            return found if place <= end + 1 else {}
        file.seek(place)
        head = file.read(8)
        name, size = head[:4], int.from_bytes(head[4:], "little")
        if len(head) < 8 or (name in (b"data", b"fmt ") and name in found):
            return {}
        found[name] = place + 8, size
        place += 8 + size + size % 2
    return {}
