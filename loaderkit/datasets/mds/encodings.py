"""Decode the values of MDS columns as mosaicml-streaming does."""

import decimal
import json
import struct
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.images.decode import open_with_pillow, raw_to_pillow
from loaderkit.system.types import Array, DType

Decode = Callable[[memoryview], object]

_NUMBERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
# The numbers for dtypes in the header of an array.
_DTYPES = dict(
    zip(
        (8, 9, 16, 17, 18, 32, 33, 34, 64, 65, 66),
        ["u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"],
        strict=True,
    )
)


def decoder_of(encoding: str, own: Mapping[str, Callable[[bytes], object]], where: str) -> Decode:
    """Return the function that decodes a value of an encoding, such as "ndarray:float32:3".

    Args:
        encoding: The encoding, as in index.json.
        own: The user's functions by encoding, with or without the arguments after ":"; each takes the value's bytes.
        where: The shard and the column, for errors.

    Raises:
        ShardError: If the encoding is not known, or decoding it would unpickle.
    """
    name, _, arguments = encoding.partition(":")
    if (given := own.get(encoding, own.get(name))) is not None:
        return partial(_as_bytes, given)
    if name == "ndarray":
        return _array_decoder(encoding, arguments, where)
    if name == "pkl":
        raise ShardError(
            f"{where} is pickled, and reading it may run any program. If you trust the writer: decode={{'pkl': pickle.loads}}. "
            "Or leave the column out: columns=[...]."
        )
    if name not in _DECODERS or arguments:
        raise ShardError(
            f"{where} has the encoding {encoding!r}, wanted one of {', '.join([*_DECODERS, 'ndarray'])}. Decode it yourself: "
            f"decode={{{encoding!r}: function}}, which takes the bytes. Or leave the column out: columns=[...]."
        )
    return _DECODERS[name]


def _as_bytes(decode: Callable[[bytes], object], data: memoryview) -> object:
    return decode(bytes(data))


def _integer(data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def _text(data: memoryview) -> str:
    return str(data, "utf-8")


def _json(data: memoryview) -> object:
    return json.loads(bytes(data))


def _number(dtype: DType, data: memoryview) -> object:
    (value,) = np.frombuffer(data, dtype)
    return value


def _str_int(data: memoryview) -> int:
    return int(_text(data))


def _str_float(data: memoryview) -> float:
    return float(_text(data))


def _str_decimal(data: memoryview) -> decimal.Decimal:
    return decimal.Decimal(_text(data))


def pieces(data: memoryview, start: int) -> list[memoryview]:
    """Return the parts of a value that is a list.

    At byte `start` the value has the number of parts, then their sizes in bytes, then the parts.

    Raises:
        ValueError: If the value does not end with the last part.
    """
    (count,) = struct.unpack_from("<I", data, start)
    at = start + 4 + 4 * count
    found = []
    for size in struct.unpack_from(f"<{count}I", data, start + 4):
        found.append(data[at : at + size])
        at += size
    if at != len(data):
        raise ValueError(f"its parts end at byte {at:,} of {len(data):,}")
    return found


def _list(start: int, decode: Decode, data: memoryview) -> list[object]:
    return [decode(piece) for piece in pieces(data, start)]


def _array_decoder(encoding: str, arguments: str, where: str) -> Decode:
    dtype, _, dims = arguments.partition(":")
    try:
        shape = tuple(map(int, dims.split(","))) if dims else None
    except ValueError:
        shape = ()
    if dtype not in ("", *_NUMBERS) or (shape is not None and (not shape or min(shape) < 1)):
        raise ShardError(
            f"{where} has the encoding {encoding!r}, wanted ndarray, ndarray:DTYPE or ndarray:DTYPE:SHAPE, with numbers."
        )
    return partial(_array, np.dtype(dtype) if dtype else None, shape)


def _array(dtype: DType | None, shape: tuple[int, ...] | None, data: memoryview) -> Array:
    """Return a writable array. A dtype or shape that is None is read from the header of the value."""
    at = 0
    if dtype is None:
        dtype, at = np.dtype(_DTYPES[data[0]]), 1
    if shape is None:
        axes, kind = data[at] >> 2, np.dtype(f"u{1 << (data[at] & 3)}")
        shape = tuple(np.frombuffer(data, kind, axes, at + 1).tolist())
        at += 1 + axes * kind.itemsize
    return np.frombuffer(data, dtype, offset=at).reshape(shape).copy()


_DECODERS: dict[str, Decode] = {
    "bytes": bytes,
    "str": _text,
    "int": _integer,
    "json": _json,
    **{name: partial(_number, np.dtype(name)) for name in _NUMBERS},
    "str_int": _str_int,
    "str_float": _str_float,
    "str_decimal": _str_decimal,
    "pil": raw_to_pillow,
    "jpeg": open_with_pillow,
    "png": open_with_pillow,
    "list[pil]": partial(_list, 4, raw_to_pillow),
    "list[jpeg]": partial(_list, 4, open_with_pillow),
    "list[png]": partial(_list, 4, open_with_pillow),
    "jpeg_array": partial(_list, 0, open_with_pillow),
    "jpegarray": partial(_list, 0, open_with_pillow),
}
