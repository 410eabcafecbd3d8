"""Decode the leaves (values) of litdata's samples as litdata does, and build samples from them."""

import json
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.images.decode import decode_picture, raw_to_pillow
from loaderkit.datasets.litdata.nested import decode_nested
from loaderkit.datasets.mds.encodings import pieces
from loaderkit.system.types import Array, DType

Decode = Callable[[memoryview], object]

# litdata's numbers for dtypes: one table for tensors, one for arrays. torch's dtypes with two names have two numbers.
_TENSORS = {
    0: torch.float32,
    1: torch.float32,
    2: torch.float64,
    3: torch.float64,
    4: torch.complex64,
    5: torch.complex64,
    6: torch.complex128,
    7: torch.complex128,
    8: torch.float16,
    9: torch.float16,
    10: torch.bfloat16,
    11: torch.uint8,
    12: torch.int8,
    13: torch.int16,
    14: torch.int16,
    15: torch.int32,
    16: torch.int32,
    17: torch.int64,
    18: torch.int64,
    19: torch.bool,
    20: torch.uint16,
}
_ARRAYS: dict[int, DType] = dict(
    enumerate(map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?")))
)


@dataclass(frozen=True, slots=True)
class Tree:
    """A node of a sample's structure: a leaf if `kind` is "", else a "dict", "list", "tuple" or "ordered" dict."""

    kind: str = ""
    keys: tuple[object, ...] = ()
    children: tuple["Tree", ...] = ()

    def build(self, leaves: Iterator[object]) -> object:
        """Return a sample, built from the next leaves of an iterator."""
        if not self.kind:
            return next(leaves)
        values = [child.build(leaves) for child in self.children]
        if self.kind == "list":
            return values
        if self.kind == "tuple":
            return tuple(values)
        pairs = zip(self.keys, values, strict=True)
        return dict(pairs) if self.kind == "dict" else OrderedDict(pairs)

    def count(self) -> int:
        """Return the number of leaves."""
        return sum(child.count() for child in self.children) if self.kind else 1


_KINDS = {
    "builtins.dict": "dict",
    "builtins.list": "list",
    "builtins.tuple": "tuple",
    "collections.OrderedDict": "ordered",
}


def tree_of(spec: str, where: str) -> Tree:
    """Return the structure of samples from litdata's `data_spec`, which is a torch pytree as JSON.

    Raises:
        ShardError: If it has containers other than dicts, lists and tuples. `where` begins the message.
    """
    _, root = json.loads(spec)
    return _node(root, where)


def _node(spec: Mapping[str, Any], where: str) -> Tree:
    name = spec["type"]
    if name is None:
        return Tree()
    if name not in _KINDS:
        raise ShardError(f"{where}: its samples have a {name}, wanted dicts, lists and tuples. {WAY_OUT}")
    keys = json.loads(spec["context"]) if _KINDS[name] in ("dict", "ordered") else ()
    found = Tree(_KINDS[name], tuple(keys), tuple(_node(child, where) for child in spec["children_spec"]))
    if keys and len(keys) != len(found.children):
        raise ValueError(f"{len(keys)} keys of {len(found.children)} values")
    return found


WAY_OUT = "Read it with litdata itself: lk.ConcatDataset([litdata.StreamingDataset(folder)])."


def decoder_of(form: str, own: Mapping[str, Callable[[bytes], object]], where: str) -> Decode:
    """Return the function that decodes a leaf of a format, such as "no_header_tensor:17".

    Args:
        form: The format, as in `data_format` of index.json.
        own: The user's functions by format, with or without the argument after ":"; each takes the leaf's bytes.
        where: The path of index.json, for errors.

    Raises:
        ShardError: If the format is not known, or decoding it would unpickle.
    """
    name, _, argument = form.partition(":")
    if (given := own.get(form, own.get(name))) is not None:
        return partial(_as_bytes, given)
    if name in ("pickle", "graph"):
        raise ShardError(
            f"{where}: has leaves of the format {form!r}, and reading them may run any program. If you trust the writer: "
            f"decode={{{name!r}: pickle.loads}}, or a function of your own that takes the bytes."
        )
    table = _TABLES.get(name, {})
    if argument.isdecimal() and int(argument) in table:
        return partial(_FLAT[name], table[int(argument)])
    if name not in _DECODERS or (argument and name not in ("image", "file")):
        raise ShardError(
            f"{where}: has leaves of the format {form!r}, wanted one of {', '.join([*_DECODERS, *_FLAT])}. Decode it yourself: "
            f"decode={{{name!r}: function}}, which takes the bytes."
        )
    return _DECODERS[name]


def _as_bytes(decode: Callable[[bytes], object], data: memoryview) -> object:
    return decode(bytes(data))


def _text(data: memoryview) -> str:
    return str(data, "utf-8")


def _integer(data: memoryview) -> int:
    (value,) = struct.unpack("<q", data)
    return int(value)


def _real(data: memoryview) -> float:
    (value,) = struct.unpack("<d", data)
    return float(value)


def _truth(data: memoryview) -> bool:
    (value,) = data
    return bool(value)


def _picture(data: memoryview) -> Tensor:
    return decode_picture(bytes(data))


def _pictures(data: memoryview) -> list[Tensor]:
    return [_picture(piece) for piece in pieces(data, 0)]


def _flat_tensor(dtype: torch.dtype, data: memoryview) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _tensor(data: memoryview) -> Tensor:
    number, axes = struct.unpack_from(">II", data)
    shape = struct.unpack_from(f">{axes}I", data, 8)
    return _flat_tensor(_TENSORS[number], data[8 + 4 * axes :]).reshape(shape)


def _flat_array(dtype: DType, data: memoryview) -> Array:
    return np.frombuffer(data, dtype).copy()


def _array(data: memoryview) -> Array:
    number, axes = struct.unpack_from("<II", data)
    shape = struct.unpack_from(f"<{axes}I", data, 8)
    return _flat_array(_ARRAYS[number], data[8 + 4 * axes :]).reshape(shape)


_TABLES: dict[str, Mapping[int, object]] = {"no_header_numpy": _ARRAYS, "no_header_tensor": _TENSORS}
_FLAT: dict[str, Callable[..., object]] = {"no_header_numpy": _flat_array, "no_header_tensor": _flat_tensor}
_DECODERS: dict[str, Decode] = {
    "str": _text,
    "text": _text,
    "bytes": bytes,
    "file": bytes,
    "bool": _truth,
    "int": _integer,
    "float": _real,
    "pil": raw_to_pillow,
    "jpeg": _picture,
    "image": _picture,
    "jpeg_array": _pictures,
    "numpy": _array,
    "tensor": _tensor,
    "json": decode_nested,
}
