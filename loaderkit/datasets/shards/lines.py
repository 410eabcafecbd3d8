"""Lines in a shard: where each lies, and many of them read at once."""

import os
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.system.arrays import Int64Array

BOM = b"\xef\xbb\xbf"

_BLOCK = 1 << 24
GAP = 1 << 12  # bytes that are cheaper to read than to seek over
_RUN = 1 << 23  # bytes read at once at most, if a line is not longer


class LineFile:
    """An open shard whose samples lie at spans of bytes."""

    def __init__(self, shard: str, file: BinaryIO) -> None:
        self.shard = shard
        self._file = file
        try:
            self._number: int | None = self._file.fileno()
        except OSError:
            self._number = None  # not a file of the system's

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, starts: list[int], ends: list[int]) -> list[bytes]:
        """Return the bytes at each of the spans (B,).

        Spans that lie near each other are read at once.

        Raises:
            ShardError: If the file ends before.
        """
        runs, run_of = _runs(starts, ends)
        contents = [self._read(first, last) for first, last in runs]
        begins = [first for first, _ in runs]
        return [
            contents[run][start - begins[run] : end - begins[run]]
            for run, start, end in zip(run_of, starts, ends, strict=True)
        ]

    def read_together(self, starts: Sequence[int], ends: Sequence[int]) -> tuple[memoryview, list[int]]:
        """Return the bytes around all the spans (B,), and where each of these begins there: no span is copied by itself.

        Raises:
            ShardError: If the file ends before.
        """
        runs, run_of = _runs(starts, ends)
        shifts: list[int] = []  # from a place in the file to its place in what is returned
        size = 0
        for first, last in runs:
            shifts.append(size - first)
            size += last - first
        content = np.empty(size, dtype=np.uint8).data
        for (first, last), shift in zip(runs, shifts, strict=True):
            self._read_into(content[first + shift : last + shift], first)
        return content, [start + shifts[run] for start, run in zip(starts, run_of, strict=True)]

    def place(self, start: int) -> str:
        """Name the line that starts at a byte, for messages."""
        self._file.seek(0)
        lines, left = 1, start
        while left and (block := self._file.read(min(_BLOCK, left))):
            lines += block.count(b"\n")
            left -= len(block)
        return f"{self.shard}: line {lines} (byte {start})"

    def _read(self, start: int, stop: int) -> bytes:
        if self._number is not None:
            content = os.pread(self._number, stop - start, start)
        else:
            self._file.seek(start)
            content = self._file.read(stop - start)
        if len(content) < stop - start:
            raise self._cut(stop)
        return content

    def _read_into(self, content: memoryview, start: int) -> None:
        if self._number is None:
            content[:] = self._read(start, start + len(content))
            return
        stop = start + len(content)
        read = os.preadv(self._number, (content,), start)
        while 0 < read < len(content):  # Linux reads 2 GiB at a time at most
            content, start = content[read:], start + read
            read = os.preadv(self._number, (content,), start)
        if read < len(content):
            raise self._cut(stop)

    def _cut(self, stop: int) -> ShardError:
        return ShardError(
            f"{self.shard}: ends at byte {self._file.seek(0, 2)}, the index has samples up to {stop} at least. "
            "It changed while it was in use: make the dataset anew."
        )


def _runs(starts: Sequence[int], ends: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Join spans (B,) that lie near each other: return where the runs begin and end, and in which of them each span lies."""
    # Without numpy: decoding empties the caches, after which each of its functions takes several times as long.
    runs: list[tuple[int, int]] = []
    run_of = [0] * len(starts)
    begin = reached = -1
    for place in sorted(range(len(starts)), key=starts.__getitem__):
        start, end = starts[place], ends[place]
        if begin < 0:
            begin, reached = start, end
        elif start - reached > GAP or end - begin > _RUN:
            runs.append((begin, reached))
            begin, reached = start, end
        elif end > reached:
            reached = end
        run_of[place] = len(runs)
    return [*runs, (begin, reached)] if starts else [], run_of


def scan_lines(shard: str, file: BinaryIO, *, blank: bytes = b" \t\r\n") -> Int64Array:
    """Return where the lines (N, 2) of a shard that are not blank start and end, without their line feeds.

    Args:
        shard: Its name, for messages.
        file: Its bytes, from the start.
        blank: Bytes that a blank line may be made of.

    Raises:
        ShardError: If the shard is not text.
    """
    ends: list[Int64Array] = []
    tops: list[Sequence[int] | Int64Array] = []  # each line's largest byte: up to 32 it may be blank
    size = open_top = 0
    while block := file.read(_BLOCK):
        if size == 0:
            check_text(shard, block)
        data = np.frombuffer(block, dtype=np.uint8)
        feeds = np.flatnonzero(data == 10).astype(np.int64)
        begins = np.concatenate([[0], feeds + 1])
        largest = np.maximum.reduceat(data, begins[begins < len(data)]).astype(np.int64)
        largest[0] = max(int(largest[0]), open_top)
        open_top = int(largest[-1]) if len(largest) > len(feeds) else 0
        ends.append(feeds + size)
        tops.append(largest[: len(feeds)])
        size += len(block)
    found = np.concatenate([*ends, [size]]).astype(np.int64)
    top = np.concatenate([*tops, [open_top]]).astype(np.int64)
    spans = np.stack([np.concatenate([[0], found[:-1] + 1]), found], axis=1)
    keep = spans[:, 1] > spans[:, 0]
    for row in np.flatnonzero(keep & (top <= 32)).tolist():
        file.seek(spans[row, 0])
        keep[row] = bool(file.read(int(spans[row, 1] - spans[row, 0])).strip(blank))
    return _without_bom(file, spans[keep], blank)


def check_text(shard: str, start: bytes) -> None:
    """Refuse what begins as a compressed file or UTF-16 does.

    Raises:
        ShardError: If it does.
    """
    for magic, what in ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz")):
        if start.startswith(magic):
            raise ShardError(
                f"{shard}: compressed with {what}, where no line can be found without reading all before it. "
                "Unpack it, or read it as a stream: lk.StreamDataset(paths, lk.LineReader())."
            )
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ShardError(f"{shard}: UTF-16 text, wanted UTF-8.")


def _without_bom(file: BinaryIO, spans: Int64Array, blank: bytes) -> Int64Array:
    if not len(spans) or spans[0, 0]:
        return spans
    file.seek(0)
    if file.read(len(BOM)) != BOM:
        return spans
    spans[0, 0] = len(BOM)
    return spans if file.read(int(spans[0, 1]) - len(BOM)).strip(blank) else spans[1:]
