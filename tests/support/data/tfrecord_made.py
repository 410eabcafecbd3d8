"""TFRecord files with records of tf.train.Example, written by hand: also forms that TensorFlow's writers do not choose."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Sequence[Any], *, packed: bool = True) -> bytes:
    """A Feature with a list of bytes, floats or integers; without one if there are no values."""
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return delimited(1, b"".join(delimited(1, value) for value in values))
    if isinstance(values[0], float):
        parts, number, wire = [struct.pack("<f", value) for value in values], 2, 5
    else:
        parts, number, wire = [varint(value) for value in values], 3, 0
    inner = delimited(1, b"".join(parts)) if packed else b"".join(varint(1 << 3 | wire) + part for part in parts)
    return delimited(number, inner)


def example(*, packed: bool = True, **values: Sequence[Any]) -> bytes:
    entries = (
        delimited(1, name.encode()) + delimited(2, feature(each, packed=packed)) for name, each in values.items()
    )
    return delimited(1, b"".join(delimited(1, entry) for entry in entries))


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_records(path: Path, records: Sequence[bytes]) -> Path:
    with path.open("wb") as file:
        for record in records:
            head = struct.pack("<Q", len(record))
            file.write(head + struct.pack("<I", masked_crc(head)) + record + struct.pack("<I", masked_crc(record)))
    return path
