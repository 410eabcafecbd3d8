"""Decoders of the file formats that WebDataset writes into tar archives. None of them unpickles objects."""

import gzip
import io
import math
import pickle
import struct
import zipfile
from collections.abc import Callable

import numpy as np
import torch

from loaderkit.datasets.shards.npyheader import decode_npy
from loaderkit.system.types import Array

_TEN_MAGIC = b"~TenBin~"
_TEN_ALIGNED = 64  # bytes; each part is padded to a multiple
_TEN_TYPES = frozenset(("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))


def unpack_gzip(data: bytes) -> bytes:
    """Return the content of a gzip file."""
    return gzip.decompress(data)


def decode_packed(data: bytes, decode: Callable[[bytes], object] | None) -> object:
    """Decompress a gzip file, and decode its content; without a decoder, return the content's bytes."""
    content = unpack_gzip(data)
    return content if decode is None else decode(content)


def decode_npz(data: bytes) -> dict[str, object]:
    """Return the arrays of a `.npz` file by name, as `np.load` does; raise a ValueError if one holds objects."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {
            name.removesuffix(".npy"): decode_npy(archive.read(name)) if name.endswith(".npy") else archive.read(name)
            for name in archive.namelist()
        }


def decode_pth(data: bytes) -> object:
    """Return the tensors and plain values that `torch.save` wrote, on the CPU; raise a ValueError for other objects.

    Other objects would be made by unpickling, which runs code that is in the file.
    """
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).partition("WeightsUnpickler error:")[2].strip().partition("\n")[0] or str(error)
        raise ValueError(
            f"not tensors and plain values alone ({reason}). If you trust the files, decode them yourself: "
            "decode=lk.DECODERS | {'pth': mine}"
        ) from error


def decode_ten(data: bytes) -> list[Array]:
    """Return the arrays of a `.ten` file, WebDataset's binary tensors.

    The file alternates headers and contents. Each begins with a magic number and its length.
    """
    parts, at = [], 0
    while at < len(data):
        magic, size = struct.unpack_from("<8sq", data, at)
        if magic != _TEN_MAGIC or not 0 <= size <= len(data) - at - 16:
            raise ValueError(f"byte {at}: no part of a file of tensors ({magic!r}, {size:,} bytes)")
        parts.append(data[at + 16 : at + 16 + size])
        at += 16 + -(-size // _TEN_ALIGNED) * _TEN_ALIGNED
    return [_ten_array(header, content) for header, content in zip(parts[::2], parts[1::2], strict=True)]


def _ten_array(header: bytes, content: bytes) -> Array:
    """Return an array from its header, which has dtype, name and shape, and its content."""
    dtype, _, rank = struct.unpack_from("<8s8sq", header)
    name = dtype.rstrip(b"\0").decode()
    shape = struct.unpack_from(f"<{rank}q", header, 24) if 0 <= rank <= len(header) // 8 else (-1,)
    if name not in _TEN_TYPES or min(shape, default=0) < 0:
        raise ValueError(f"an array of type {name!r} and shape {shape}, wanted one of {sorted(_TEN_TYPES)}")
    flat = np.frombuffer(content, f"<{name}", math.prod(shape))
    return flat.reshape(shape).copy()  # a copy, because the bytes are read-only


def decode_msgpack(data: bytes) -> object:
    """Return the value in MessagePack data."""
    try:
        import msgpack
    except ImportError as error:
        raise ImportError("files that end in .mp or .msg need msgpack: pip install msgpack.") from error
    return msgpack.unpackb(data)
