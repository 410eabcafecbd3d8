"""Decode the values of Parquet's VARIANT columns.

Source: github.com/apache/parquet-format, VariantEncoding.md and VariantShredding.md.
"""

import datetime
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP = re.compile(r"^  \w+ group field_id=-?\d+ (.+) \(Variant\b.*\) \{$", re.MULTILINE)
_DAY = datetime.date(1970, 1, 1)
_EPOCH = datetime.datetime(1970, 1, 1)
_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def variant_columns(schema: "pa.Schema") -> frozenset[str]:
    """Return the names of the columns that a Parquet file's schema marks as VARIANT."""
    text = str(schema)
    return frozenset(_GROUP.findall(text)) if "(Variant" in text else frozenset()


def decode_variant(row: Mapping[str, Any] | None) -> object:
    """Return the value of a row, which is a struct, as a Python object.

    The struct's field `metadata` has the names of an object's fields. The value is in `value` (encoded), in
    `typed_value` (shredded), or in both.

    Raises:
        ValueError: If the bytes are not a valid VARIANT value.
    """
    if row is None:
        return None
    try:
        found = _joined(row, _names(row["metadata"]))
    except (IndexError, KeyError, TypeError, OverflowError, struct.error, RecursionError) as error:
        raise ValueError(f"a broken VARIANT value: {type(error).__name__}: {error}") from error
    return None if found is _ABSENT else found


_ABSENT = object()


def _joined(part: Mapping[str, Any], names: list[str]) -> object:
    """Return the value that `value` and `typed_value` hold together; `_ABSENT` if both are null."""
    content, typed = part.get("value"), part.get("typed_value")
    if typed is None:
        return _ABSENT if content is None else _decode(content, 0, names)
    if isinstance(typed, list):
        return [_joined(each, names) for each in typed]
    if not isinstance(typed, dict):
        return typed
    fields = {name: _joined(each, names) for name, each in typed.items()}
    rest = {} if content is None else _decode(content, 0, names)
    return rest | {name: value for name, value in fields.items() if value is not _ABSENT}


def _names(metadata: bytes) -> list[str]:
    size = (metadata[0] >> 6) + 1
    count = _number(metadata, 1, size)
    offsets = _numbers(metadata, 1 + size, size, count + 1)
    start = 1 + size * (count + 2)
    return [metadata[start + first : start + last].decode() for first, last in pairwise(offsets)]


def _decode(content: bytes, at: int, names: list[str]) -> Any:
    basic, head, at = content[at] & 3, content[at] >> 2, at + 1
    if basic == 1:
        return _cut(content, at, head).decode()
    if basic == 0:
        if (primitive := _PRIMITIVES.get(head)) is None:
            raise ValueError(f"a VARIANT value of type {head}, wanted one of 0 to {max(_PRIMITIVES)}")
        return primitive.read(_cut(content, at, primitive.size)) if primitive.size else _open_ended(head, content, at)
    is_object = basic == 2
    width = (head & 3) + 1
    id_width = (head >> 2 & 3) + 1 if is_object else 0
    many = 4 if head >> (4 if is_object else 2) & 1 else 1
    count, at = _number(content, at, many), at + many
    ids, at = _numbers(content, at, id_width, count) if is_object else [], at + id_width * count
    offsets, at = _numbers(content, at, width, count + 1), at + width * (count + 1)
    values = [_decode(content, at + offset, names) for offset in offsets[:count]]
    return {names[number]: value for number, value in zip(ids, values, strict=True)} if is_object else values


def _open_ended(kind: int, content: bytes, at: int) -> object:
    """Return a primitive whose type has no fixed size in `_PRIMITIVES`: null, true, false, bytes or a text."""
    if kind < 3:
        return (None, True, False)[kind]
    found = _cut(content, at + 4, _number(content, at, 4))
    return found if kind == 15 else found.decode()


def _cut(content: bytes, at: int, size: int) -> bytes:
    if at + size > len(content):
        raise ValueError(f"a VARIANT value of {len(content):,} bytes, wanted {at + size:,}")
    return content[at : at + size]


def _number(content: bytes, at: int, size: int) -> int:
    return int.from_bytes(_cut(content, at, size), "little")


def _numbers(content: bytes, at: int, size: int, count: int) -> list[int]:
    whole = _cut(content, at, size * count)
    return [int.from_bytes(whole[place : place + size], "little") for place in range(0, size * count, size)]


class _Primitive(NamedTuple):
    size: int  # bytes; 0 if the size is not fixed by the type
    read: Callable[[bytes], object] = bytes


def _integer(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


def _decimal(content: bytes) -> Decimal:
    return Decimal(_integer(content[1:])).scaleb(-content[0])


def _microseconds(content: bytes) -> datetime.timedelta:
    return datetime.timedelta(microseconds=_integer(content))


def _nanoseconds(content: bytes) -> np.datetime64:
    return np.datetime64(_integer(content), "ns")


_PRIMITIVES = {
    **dict.fromkeys((0, 1, 2, 15, 16), _Primitive(0)),
    **{3 + power: _Primitive(1 << power, _integer) for power in range(4)},
    7: _Primitive(8, lambda content: struct.unpack("<d", content)[0]),
    8: _Primitive(5, _decimal),
    9: _Primitive(9, _decimal),
    10: _Primitive(17, _decimal),
    11: _Primitive(4, lambda content: _DAY + datetime.timedelta(days=_integer(content))),
    12: _Primitive(8, lambda content: _UTC + _microseconds(content)),
    13: _Primitive(8, lambda content: _EPOCH + _microseconds(content)),
    14: _Primitive(4, lambda content: struct.unpack("<f", content)[0]),
    17: _Primitive(8, lambda content: (_EPOCH + _microseconds(content)).time()),
    18: _Primitive(8, _nanoseconds),
    19: _Primitive(8, _nanoseconds),
    20: _Primitive(16, lambda content: uuid.UUID(bytes=content)),
}
