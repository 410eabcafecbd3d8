"""Headers of a tar archive read ahead of their proof: those of small files with all between, others one by one."""

import contextlib
import io
import os

import numpy as np

from loaderkit.datasets.tar.headers import BLOCK, EXTENDED, Bytes, Files, find_headers, find_run
from loaderkit.system.arrays import Int64Array

_BULK = 1 << 20  # bytes read at once where files are small: what a processor's own cache holds
_SMALL = 1 << 13  # bytes from one header to the next, up to which all between is read as well
_WINDOW = 2048  # bytes read at once where files are large: headers of small files among them lie together
_LEAST, _MOST = 64, 4096  # headers that are read before they are verified
_WINDOWS = 512  # read before their headers are verified
_STEADY = 8  # windows in which headers lie as in the one before, so that the next are taken to be like them

Found = tuple[Bytes, Bytes, Int64Array]  # headers, the blocks behind those that are extended, and offsets


class RunReader:
    """Finds runs of ordinary headers in a file, which is never mapped: one that is cut meanwhile would end the process.

    Args:
        file: The archive.
        size_bytes: Its size.
    """

    def __init__(self, file: io.FileIO, size_bytes: int) -> None:
        self._file, self._size_bytes = file, size_bytes
        self._wanted = _LEAST
        self._buffer: Bytes = np.empty((0, BLOCK), dtype=np.uint8)
        self._headers: Bytes = np.empty((0, BLOCK), dtype=np.uint8)
        self._windows = bytearray()
        self._step = 0  # size of a window
        self._marks: Int64Array | None = None  # where headers lie in each, if that was the same of late
        self._views: list[tuple[memoryview]] = []  # of the windows, as preadv takes them
        self._fields: list[slice] = []  # where the size in the last header of each is, if they are alike

    def read(self, offset: int, apart: int) -> tuple[Files, int] | None:
        """Return the files of the run that begins at an offset, and where it ends; None if there is none.

        Args:
            offset: Of a header.
            apart: Bytes from one header to the next, about.
        """
        headers, contents, places = self._in_bulk(offset, apart) if apart <= _SMALL else self._one_by_one(offset)
        if not len(places) or places[0] != offset:
            self._marks = None
            return None
        files, end = find_run(headers, contents, places)
        whole = end > int(places[-1])
        if len(files) and int(files.places[-1] + files.sizes[-1]) > self._size_bytes:  # an error, but not ours to name
            end = int(files.places[-1]) - BLOCK
            files = Files(files.names[:-1], files.places[:-1], files.sizes[:-1])
        if not whole:
            self._marks = None
        # What breaks a run may come often: then little is read in vain.
        self._wanted = min(max(self._wanted * 8 if whole else len(files), _LEAST), _MOST)
        return (files, end) if end > offset else None

    def _in_bulk(self, offset: int, apart: int) -> Found:
        """Read everything from an offset on, up to the headers wanted."""
        if not len(self._buffer):
            most = -(-min(_BULK, self._size_bytes) // BLOCK)
            # In one piece: malloc keeps it for the next archive, where it gives two such pieces back to the system, and
            # memory that is new takes longer to touch than the headers of small files take to read.
            memory = np.empty((most + _MOST + most, BLOCK), dtype=np.uint8)
            self._buffer, self._headers = memory[:most], memory[most:]
        contents = []
        places = np.empty(len(self._headers), dtype=np.int64)
        count, begin = 0, offset
        while count < self._wanted and offset - begin < self._wanted * 2 * _SMALL:
            some = (self._wanted - count) * max(apart, 2 * BLOCK) // BLOCK + 8
            length = os.preadv(self._file.fileno(), (self._buffer[:some].data,), offset)
            blocks = self._buffer[: length // BLOCK]
            rows = find_headers(blocks)
            if len(rows) and rows[-1] == len(blocks) - 1:  # if it is extended, what it says is not read yet
                rows, blocks = rows[:-1], blocks[:-1]
            if not len(blocks):
                break
            found = self._headers[count : count + len(rows)]
            np.take(blocks, rows, axis=0, out=found, mode="clip")
            np.add(rows * BLOCK, offset, out=places[count : count + len(rows)])
            if (extended := found[:, 156] == EXTENDED).any():
                contents.append(blocks[rows[extended] + 1])
            count += len(rows)
            offset += len(blocks) * BLOCK
        headers = self._headers[:count]
        return headers, np.concatenate(contents) if contents else headers[:0], places[:count]

    def _one_by_one(self, offset: int) -> Found:
        """Read what lies around headers, each where the one before it says."""
        if self._marks is not None:
            return self._alike(offset, self._marks)
        content, number, read, last = self._windows_of(_WINDOW), self._file.fileno(), os.preadv, _WINDOW - 2 * BLOCK
        windows: list[int] = []  # where they begin
        places: list[int] = []
        begin = 0
        try:
            for view in self._views:
                if len(places) >= self._wanted or read(number, view, offset) != _WINDOW:
                    break
                windows.append(offset)
                at = 0
                while at <= last:  # so that the block behind the header is there too
                    field = begin + at + 124
                    size = int(content[field : field + 11], 8)
                    if size < 0:
                        raise ValueError
                    places.append(offset + at)
                    at += BLOCK + (size + (BLOCK - 1) & -BLOCK)
                offset += at
                begin += _WINDOW
        except ValueError:  # no size: not ours
            pass
        blocks = np.frombuffer(content, dtype=np.uint8).reshape(-1, BLOCK)
        found, starts = np.array(places, dtype=np.int64), np.array(windows, dtype=np.int64)
        part = np.searchsorted(starts, found, side="right") - 1
        marks = found - starts[part]
        self._marks = _pattern(marks)
        rows = part * (_WINDOW // BLOCK) + marks // BLOCK
        headers = blocks[rows]
        return headers, blocks[rows[headers[:, 156] == EXTENDED] + 1], found

    def _alike(self, offset: int, marks: Int64Array) -> Found:
        """Read windows in which headers lie at the same marks; only the last of each is asked for the next."""
        mark = int(marks[-1])
        step, ahead = mark + 2 * BLOCK, mark + 2 * BLOCK - 1  # the latter rounds sizes up too
        content, number, read = self._windows_of(step), self._file.fileno(), os.preadv
        self._fields = self._fields or [slice(at, at + 11) for at in range(mark + 124, _WINDOWS * step, step)]
        fields = self._fields[: -(-self._wanted // len(marks))]
        windows: list[int] = []
        with contextlib.suppress(ValueError, OSError):  # no size, or none that leads further
            for view, field in zip(self._views, fields, strict=False):
                if read(number, view, offset) != step:
                    break
                windows.append(offset)
                offset += int(content[field], 8) + ahead & -BLOCK
        starts = np.array(windows, dtype=np.int64)
        back = np.flatnonzero(starts[1:] <= starts[:-1] + mark)  # behind a size below zero
        starts = starts[: int(back[0]) + 1] if len(back) else starts
        blocks = np.frombuffer(content, dtype=np.uint8, count=_WINDOWS * step).reshape(_WINDOWS, -1, BLOCK)[
            : len(starts)
        ]
        headers = np.take(blocks, marks // BLOCK, axis=1, mode="clip")
        window, which = np.nonzero(headers[:, :, 156] == EXTENDED)
        contents = blocks[window, marks[which] // BLOCK + 1]
        return headers.reshape(-1, BLOCK), contents, (starts[:, None] + marks).ravel()

    def _windows_of(self, step: int) -> bytearray:
        """Return memory for windows of this size, with a view of each."""
        if not self._views or self._step != step:
            self._windows = self._windows or bytearray(_WINDOWS * _WINDOW)
            view, self._step, self._fields = memoryview(self._windows), step, []
            self._views = [(view[at : at + step],) for at in range(0, _WINDOWS * step, step)]
        return self._windows


def _pattern(marks: Int64Array) -> Int64Array | None:
    """Return where headers lie in each of some windows, from their places in these (N,); None where that differs."""
    marks = marks[1 + int(np.argmin(marks[1:])) :] if len(marks) > 1 else marks  # the first may begin amid a sample
    starts = np.flatnonzero(marks == 0)
    step = int(starts[1]) if len(starts) > 1 else len(marks)
    same = len(starts) >= _STEADY and len(marks) == len(starts) * step
    return marks[:step] if same and np.all(marks.reshape(-1, step) == marks[:step]) else None
