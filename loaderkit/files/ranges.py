"""Remote files that are read by ranges, without a local copy."""

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Yields spans of bytes of a file, (start, stop) each, one after another and perhaps in parts.
ReadSpans = Callable[[Sequence[tuple[int, int]]], Iterator[bytes]]

BLOCK = 1 << 22  # most bytes of one request
BUFFER = 1 << 18  # bytes of the smallest read


class RangeFile(io.BufferedReader):
    """A remote file that requests the ranges that are read. It holds no connection, so it survives a fork."""

    def __init__(self, url: str, size_bytes: int, read_spans: ReadSpans) -> None:
        super().__init__(_Ranges(size_bytes, read_spans), BUFFER)
        self._url, self._size_bytes, self._read_spans = url, size_bytes, read_spans

    def read_into(self, spans: Sequence[tuple[int, int]], content: memoryview) -> None:
        """Read spans of bytes into a buffer, one after another, by parallel requests.

        Raises:
            EOFError: If the file ends before a span does.
        """
        if max(stop for _, stop in spans) > self._size_bytes:
            raise EOFError(f"{self._url}: ends at byte {self._size_bytes:,}")
        at = 0
        for part in self._read_spans(spans):
            content[at : at + len(part)] = part
            at += len(part)


class _Ranges(io.RawIOBase):
    def __init__(self, size_bytes: int, read_spans: ReadSpans) -> None:
        self._size_bytes, self._read_spans = size_bytes, read_spans
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
        buffer[:count] = b"".join(self._read_spans([(self._at, self._at + count)]))
        self._at += count
        return count
