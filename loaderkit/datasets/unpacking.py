"""Decompress whole contents of files, by the codecs that other tools use."""

import bz2
import zlib
from typing import Any

from loaderkit.datasets.errors import ShardError

_GZIP = 31  # zlib's window for gzip with its header
_ARROW = {"br": "brotli", "snappy": "snappy", "zstd": "zstd"}  # codecs that pyarrow has, with its names for them
CODECS = ("bz2", "gz", *_ARROW)


def unpack(codec: str, content: bytes | memoryview, size_bytes: int, where: str) -> bytes:
    """Decompress bytes, and check the size of the result.

    Args:
        codec: One of `CODECS`.
        content: The compressed bytes.
        size_bytes: The size that the decompressed bytes must have.
        where: The file's path, for errors.

    Raises:
        ShardError: If the codec is not known, or the content is damaged or has another size.
        ImportError: If the codec needs pyarrow, which is not installed.
    """
    if codec not in CODECS:
        raise ShardError(f"{where}: compressed with {codec!r}, wanted one of {', '.join(sorted(CODECS))}.")
    try:
        found = _unpack(codec, content, size_bytes)
    except ImportError as error:
        raise ImportError(
            f"{where}: is compressed with {codec}, which needs pyarrow: pip install '.[arrow]' in a checkout of loaderkit."
        ) from error
    except MemoryError:  # not a fault of the file
        raise
    except Exception as error:  # each codec raises errors of its own
        raise ShardError(
            f"{where}: can't be unpacked by {codec}, {type(error).__name__}: {error}. It is cut or damaged."
        ) from error
    if len(found) != size_bytes:
        raise ShardError(
            f"{where}: has {len(found):,} bytes after unpacking, wanted {size_bytes:,}. It is cut or damaged."
        )
    return found


def _unpack(codec: str, content: bytes | memoryview, size_bytes: int) -> bytes:
    if codec in _ARROW:
        import pyarrow as pa

        found: bytes = pa.decompress(content, size_bytes, _ARROW[codec], asbytes=True)
        return found
    unpacker: Any = zlib.decompressobj(_GZIP) if codec == "gz" else bz2.BZ2Decompressor()
    found = unpacker.decompress(content, size_bytes + 1)  # at most one byte too many, however much the file holds
    if not unpacker.eof and len(found) <= size_bytes:
        raise ValueError("it ends too early")
    return found
