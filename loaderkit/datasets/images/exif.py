"""Read the EXIF orientation of a JPEG and apply it to pixels, for decoders that ignore it, such as nvJPEG."""

import struct

from torch import Tensor

_EXIF = b"Exif\0\0"
_APP1, _ORIENTATION, _SHORT = 0xE1, 0x0112, 3
_UPRIGHT = 1


def jpeg_orientation(data: bytes) -> int:
    """Return the EXIF orientation of a JPEG, 1 to 8 (EXIF 2.3, tag 0x0112); 1, which is upright, if it has none."""
    at = 2
    while len(data) >= at + 4 and data[at] == 0xFF and data[at + 1] != 0xDA:
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        content = data[at + 4 : at + 2 + size]
        if data[at + 1] == _APP1 and content.startswith(_EXIF):
            try:
                return _from_tiff(content[len(_EXIF) :])
            except struct.error:  # the EXIF data is cut
                return _UPRIGHT
        at += 2 + max(2, size)
    return _UPRIGHT


def upright(pixels: Tensor, orientation: int) -> Tensor:
    """Turn and mirror pixels (C, H, W), stored in an EXIF orientation (1 to 8), so that they are upright."""
    if orientation > 4:
        pixels = pixels.transpose(1, 2)
    mirrored = {2: [2], 3: [1, 2], 4: [1], 6: [2], 7: [1, 2], 8: [1]}.get(orientation)
    return pixels if mirrored is None else pixels.flip(mirrored)


def _from_tiff(data: bytes) -> int:
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        return _UPRIGHT
    (at,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, at)
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, _, value = struct.unpack_from(f"{order}HHIH", data, entry)
        if tag == _ORIENTATION and kind == _SHORT:
            return value if 1 <= value <= 8 else _UPRIGHT
    return _UPRIGHT
