"""Remote files that are read by range requests, without a local copy."""

import io
from collections.abc import Sequence

from typing_extensions import Buffer

from loaderkit.files.requests import BLOCK, Requests

BUFFER = 1 << 18  # bytes of the smallest read


class RangeFile(io.BufferedReader):
    """A remote file whose reads are range requests. The file itself holds no connection, so it survives a fork."""

    def __init__(self, url: str, size_bytes: int, requests: Requests) -> None:
        super().__init__(_Ranges(url, size_bytes, requests), BUFFER)
        self._url, self._size_bytes, self._requests = url, size_bytes, requests

    def read_into(self, spans: Sequence[tuple[int, int]], content: memoryview) -> None:
        """Read spans (start, stop) of bytes into a buffer, in their order without gaps, by parallel requests.

        Raises:
            EOFError: If the file ends before a span does.
        """
        if max(stop for _, stop in spans) > self._size_bytes:
            raise EOFError(f"{self._url}: ends at byte {self._size_bytes:,}")
        at = 0
        for part in self._requests.read_many(self._url, spans, self._size_bytes):
            content[at : at + len(part)] = part
            at += len(part)


class _Ranges(io.RawIOBase):
    def __init__(self, url: str, size_bytes: int, requests: Requests) -> None:
        self._url, self._size_bytes, self._requests = url, size_bytes, requests
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        content = memoryview(buffer)
        count = min(len(content), self._size_bytes - self._at, BLOCK)
        if count <= 0:
            return 0
        spans = [(self._at, self._at + count)]
        content[:count] = b"".join(self._requests.read_many(self._url, spans, self._size_bytes))
        self._at += count
        return count
