"""Find the lines of a shard, and read many byte spans of a file with few reads."""

import os
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.files.arriving import ArrivingFile
from loaderkit.files.ranges import RangeFile
from loaderkit.system.arrays import Int64Array

BOM = b"\xef\xbb\xbf"
COMPRESSED = {  # the first bytes of a file
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
GAP = 1 << 12  # bytes that are cheaper to read than to seek over
_REMOTE_GAP = 1 << 17  # bytes that are cheaper to read than another request
_BLOCK = 1 << 24  # bytes
_RUN = 1 << 23  # bytes in one read, unless a span is longer


class LineFile:
    """An open shard whose samples are spans of bytes.

    Spans that are at most `gap` bytes apart are joined into one read of at most `run` bytes, unless a span is longer.
    """

    def __init__(self, shard: str, file: BinaryIO, *, gap: int = GAP, run: int = _RUN) -> None:
        self.shard = shard
        self._gap, self._run = gap, run
        self._use(file)

    def _use(self, file: BinaryIO) -> None:
        self._file = file
        self._ranges = file if isinstance(file, RangeFile) else None
        self._arriving = file if isinstance(file, ArrivingFile) else None
        try:
            self._descriptor: int | None = file.fileno()
        except OSError:
            self._descriptor = None

    def close(self) -> None:
        self._file.close()

    @property
    def is_remote(self) -> bool:
        """Whether reads are range requests, because there is no local copy (yet)."""
        return self._ranges is not None

    @property
    def descriptor(self) -> int | None:
        """The file's descriptor; None for a file that is remote or in memory."""
        return self._descriptor

    def read(self, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Return the bytes from `starts` to `ends` (B,); raise a ShardError if the file ends before a span does."""
        content, places = self.read_together(starts, ends)
        sizes = [end - start for start, end in zip(starts, ends, strict=True)]
        return [bytes(content[place : place + size]) for place, size in zip(places, sizes, strict=True)]

    def read_together(self, starts: Sequence[int], ends: Sequence[int]) -> tuple[memoryview, list[int]]:
        """Return one buffer that holds the spans `starts` to `ends` (B,), and each span's offset in it (B,)."""
        if self._arriving is not None and (copy := self._arriving.copy()) is not None:
            self._use(copy)
        runs, run_of = self._join_spans(starts, ends)
        shifts: list[int] = []  # for each run: offset in the buffer minus offset in the file
        size = 0
        for first, last in runs:
            shifts.append(size - first)
            size += last - first
        content = np.empty(size, dtype=np.uint8).data
        if self._ranges is not None and runs:
            try:
                self._ranges.read_into(runs, content)
            except EOFError as error:
                raise self._cut(max(ends)) from error
        else:
            for (first, last), shift in zip(runs, shifts, strict=True):
                self._read_into(content[first + shift : last + shift], first)
        return content, [start + shifts[run] for start, run in zip(starts, run_of, strict=True)]

    def place(self, start: int) -> str:
        """Return the file, line number and byte of the line that starts at a byte, for errors."""
        self._file.seek(0)
        lines, left = 1, start
        while left and (block := self._file.read(min(_BLOCK, left))):
            lines += block.count(b"\n")
            left -= len(block)
        return f"{self.shard}: line {lines} (byte {start})"

    def _join_spans(self, starts: Sequence[int], ends: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
        """Join close spans (B,) into runs. Return each run's start and end, and the number of each span's run (B,)."""
        # Without numpy: decoding leaves the CPU's caches cold, and numpy's functions then take several times as long.
        gap = self._gap if self._ranges is None else max(self._gap, _REMOTE_GAP)
        runs: list[tuple[int, int]] = []
        run_of = [0] * len(starts)
        for place in sorted(range(len(starts)), key=starts.__getitem__):
            start, end = starts[place], ends[place]
            if runs and start - runs[-1][1] <= gap and end - runs[-1][0] <= self._run:
                runs[-1] = runs[-1][0], max(runs[-1][1], end)
            else:
                runs.append((start, end))
            run_of[place] = len(runs) - 1
        return runs, run_of

    def _read_into(self, content: memoryview, start: int) -> None:
        stop = start + len(content)
        while start < stop:  # Linux reads at most 2 GiB at a time
            if self._descriptor is not None:
                count = os.preadv(self._descriptor, [content], start)
            else:
                self._file.seek(start)
                part = self._file.read(stop - start)
                count = len(part)
                content[:count] = part
            if not count:
                raise self._cut(stop)
            content, start = content[count:], start + count

    def _cut(self, stop: int) -> ShardError:
        return ShardError(
            f"{self.shard}: ends at byte {self._file.seek(0, 2)}, the index has samples up to {stop} at least. "
            "It changed while it was in use: make the dataset again."
        )


def scan_lines(shard: str, file: BinaryIO, *, blank: bytes = b" \t\r\n", block: int = _BLOCK) -> Int64Array:
    """Return the start and end (N, 2) of each line, without line feeds. Lines of only `blank` bytes are left out."""
    at = skip_bom(shard, file)
    spans = [np.empty((0, 2), dtype=np.int64)]
    while lines := file.readlines(block):
        ends = at + np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))
        starts = np.concatenate([[at], ends[:-1]])
        at = int(ends[-1])
        is_kept = np.fromiter((bool(line.strip(blank)) for line in lines), np.bool_, len(lines))
        ends[:-1] -= 1  # the line feeds
        ends[-1] -= lines[-1].endswith(b"\n")
        spans.append(np.stack([starts, ends], axis=1)[is_kept])
    return np.concatenate(spans)


def skip_bom(shard: str, file: BinaryIO) -> int:
    """Seek to the first byte after a byte order mark, if any, and return its offset.

    Raises:
        ShardError: If the file is compressed or UTF-16.
    """
    file.seek(0)
    start = file.read(6)
    for magic, what in COMPRESSED.items():
        if start.startswith(magic):
            raise ShardError(
                f"{shard}: compressed with {what}, wanted plain text: in a compressed file, reading a line means reading all "
                "lines before it. Unpack it, or read it as a stream: lk.StreamDataset(paths, lk.LineReader())."
            )
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ShardError(f"{shard}: UTF-16 text, wanted UTF-8.")
    return file.seek(len(BOM) if start.startswith(BOM) else 0)
