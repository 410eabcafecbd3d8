"""Remote files that are read by ranges, without a local copy."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaderkit.datasets.remote.storage import Storage

BLOCK = 1 << 22  # most bytes of one request
BUFFER = 1 << 18  # bytes of the smallest read


class RangeFile(io.BufferedReader):
    """A remote file that requests the ranges that are read."""

    def __init__(self, storage: "Storage", url: str, size_bytes: int) -> None:
        super().__init__(_Ranges(storage, url, size_bytes), BUFFER)
        self._storage, self._url, self._size_bytes = storage, url, size_bytes

    def read_into(self, spans: Sequence[tuple[int, int]], content: memoryview) -> None:
        """Read spans of bytes into a buffer, one after another, by parallel requests.

        Raises:
            EOFError: If the file ends before a span does.
        """
        if max(stop for _, stop in spans) > self._size_bytes:
            raise EOFError(f"{self._url}: ends at byte {self._size_bytes:,}")
        at = 0
        for part in self._storage.read_many(self._url, spans, self._size_bytes):
            content[at : at + len(part)] = part
            at += len(part)


class _Ranges(io.RawIOBase):
    """A remote file, read by ranges. It holds no connection, so it survives a fork."""

    def __init__(self, storage: "Storage", url: str, size_bytes: int) -> None:
        self._storage, self._url, self._size_bytes = storage, url, size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._size_bytes - self._at, BLOCK)
        if count <= 0:
            return 0
        content = self._storage.read(self._url, self._at, self._at + count, self._size_bytes)
        buffer[:count] = content[:count]
        self._at += count
        return count
