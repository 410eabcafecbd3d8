"""Headers of a tar archive read ahead of their proof: those of small files with all between, others one by one."""

import io
import os

import numpy as np

from loaderkit.datasets.tarheaders import BLOCK, EXTENDED, Bytes, Files, find_headers, find_run
from loaderkit.seeding import Int64Array

_BULK = 1 << 21  # bytes read at once where files are small
_SMALL = 1 << 14  # bytes from one header to the next, up to which all between is read as well
_WINDOW = 2048  # bytes read at once where files are large: headers of small files among them lie together
_LEAST, _MOST = 64, 2048  # headers that are read before they are verified

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
        self._buffer = np.empty(min(_BULK, -(-size_bytes // BLOCK) * BLOCK), dtype=np.uint8)
        self._windows = bytearray()
        self._headers = np.empty((_MOST, BLOCK), dtype=np.uint8)

    def read(self, offset: int, apart: int) -> tuple[Files, int] | None:
        """Return the files of the run that begins at an offset, and where it ends; None if there is none.

        Args:
            offset: Of a header.
            apart: Bytes from one header to the next, about.
        """
        headers, contents, places = self._in_bulk(offset) if apart <= _SMALL else self._one_by_one(offset)
        if not len(places) or places[0] != offset:
            return None
        files, end = find_run(headers, contents, places)
        whole = end > int(places[-1])
        if len(files) and int(files.places[-1] + files.sizes[-1]) > self._size_bytes:  # an error, but not ours to name
            end = int(files.places[-1]) - BLOCK
            files = Files(files.names[:-1], files.places[:-1], files.sizes[:-1])
        # What breaks a run may come often: then little is read in vain.
        self._wanted = min(self._wanted * 2, _MOST) if whole else max(_LEAST, len(files))
        return (files, end) if end > offset else None

    def _in_bulk(self, offset: int) -> Found:
        """Read everything from an offset on, up to the headers wanted."""
        headers, contents = self._headers, []
        places = np.empty(len(headers), dtype=np.int64)
        count, begin = 0, offset
        while count < self._wanted and offset - begin < self._wanted * 2 * _SMALL:
            self._file.seek(offset)
            length = self._file.readinto(self._buffer.data) or 0
            blocks = self._buffer[: length // BLOCK * BLOCK].reshape(-1, BLOCK)
            rows = find_headers(blocks)[: self._wanted - count]
            if len(rows) and rows[-1] == len(blocks) - 1:  # if it is extended, what it says is not read yet
                rows, blocks = rows[:-1], blocks[:-1]
            if not len(blocks):
                break
            found = headers[count : count + len(rows)]
            np.take(blocks, rows, axis=0, out=found, mode="clip")
            np.add(rows * BLOCK, offset, out=places[count : count + len(rows)])
            contents.append(blocks[rows[found[:, 156] == EXTENDED] + 1])
            count += len(rows)
            offset += len(blocks) * BLOCK
        return headers[:count], np.concatenate(contents) if contents else headers[:0], places[:count]

    def _one_by_one(self, offset: int) -> Found:
        """Read what lies around headers, each where the one before it says."""
        number, read, step, last = self._file.fileno(), os.preadv, _WINDOW, _WINDOW - 2 * BLOCK
        if not self._windows:
            self._windows = bytearray(_MOST * _WINDOW)
        content, view = self._windows, memoryview(self._windows)
        windows: list[int] = []  # where they begin
        places: list[int] = []
        begin = 0
        try:
            while len(places) < self._wanted and read(number, (view[begin : begin + step],), offset) == step:
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
                begin += step
        except ValueError:  # no size: not ours
            pass
        blocks = np.frombuffer(content, dtype=np.uint8).reshape(-1, BLOCK)
        found, starts = np.array(places, dtype=np.int64), np.array(windows, dtype=np.int64)
        part = np.searchsorted(starts, found, side="right") - 1
        rows = part * (step // BLOCK) + (found - starts[part]) // BLOCK
        headers = blocks[rows]
        return headers, blocks[rows[headers[:, 156] == EXTENDED] + 1], found
