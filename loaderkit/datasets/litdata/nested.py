"""Decode lists and dicts from litdata's compact binary format, in which each value follows a tag with its type."""

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

_U32 = struct.Struct("<I")
_JSON_TEXT = 0x20  # a greater first byte is of plain JSON, which older versions wrote


def decode_nested(data: memoryview) -> object:
    """Return the value of a leaf of the format "json".

    Raises:
        ValueError: If the bytes have an unknown tag, or are more or fewer than the value needs.
    """
    if not data or data[0] > _JSON_TEXT:
        return json.loads(bytes(data))
    reader = _Reader(data)
    value = reader.value()
    if reader.at != len(data):
        raise ValueError(f"its values end at byte {reader.at:,} of {len(data):,}")
    return value


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data, self.at = data, 0

    def value(self) -> object:
        tag = self._number("B")
        if tag not in _TAGS:
            raise ValueError(f"unknown tag {tag}")
        return _TAGS[tag](self)

    def take(self, size: int) -> memoryview:
        found = self._data[self.at : self.at + size]
        if len(found) < size:
            raise ValueError(f"it ends at byte {len(self._data):,}, wanted {self.at + size:,}")
        self.at += size
        return found

    def text(self) -> str:
        return str(self.take(self.count()), "utf-8")

    def count(self) -> int:
        (found,) = _U32.unpack(self.take(4))
        return int(found)

    def numbers(self, dtype: str) -> list[object]:
        count = self.count()
        return list(np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype).tolist())

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.count())]

    def mapping(self) -> dict[str, object]:
        return {self.text(): self.value() for _ in range(self.count())}

    def records(self) -> list[dict[str, object]]:
        count, keys = self.count(), self.texts()
        if not keys:
            raise ValueError("its records have no fields")
        return [{key: self._entry() for key in keys} for _ in range(count)]

    def packed(self) -> Any:
        return json.loads(bytes(self.take(self.count())))

    def _entry(self) -> object:
        tag = self._number("B")
        if tag not in _ENTRIES:
            raise ValueError(f"unknown tag {tag} of a record")
        return _ENTRIES[tag](self)

    def _number(self, form: str) -> Any:
        (found,) = struct.unpack(f"<{form}", self.take(struct.calcsize(form)))
        return found

    def integer(self) -> int:
        return int(self._number("q"))

    def real(self) -> float:
        return float(self._number("d"))

    def truth(self) -> bool:
        return bool(self._number("B"))


def _nothing(_: _Reader) -> None:
    return None


_SINGLE: tuple[Callable[[_Reader], object], ...] = (_Reader.text, _Reader.integer, _Reader.real, _Reader.truth)
_TAGS: dict[int, Callable[[_Reader], object]] = {
    0: _Reader.packed,
    1: _Reader.texts,
    2: lambda reader: reader.numbers("<i8"),
    3: lambda reader: reader.numbers("<f8"),
    4: lambda reader: reader.numbers("?"),
    5: _Reader.mapping,
    6: _Reader.records,
    **dict(enumerate(_SINGLE, 7)),
    11: _nothing,
}
_ENTRIES: dict[int, Callable[[_Reader], object]] = {0x10: _nothing, **dict(enumerate(_SINGLE, 0x11))}
