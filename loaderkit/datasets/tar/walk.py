"""Where the files of a tar archive lie: its headers, walked once, and none believed before its checksum."""

import io
import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.tar.headers import BLOCK, File, Files, have_checksums
from loaderkit.datasets.tar.runs import RunReader

_ZEROS = bytes(BLOCK)
_CHUNK = 2048  # headers whose checksums are verified at once
_FEW = 32  # headers that are walked over one by one before a run of them is looked for
_WINDOW = 4096  # bytes read at once: a small file's header with the next one
_MOST_EXTENDED = 1 << 20  # bytes of an extended header
_FILES = b"0\x007"
_DIRECTORY, _LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL, _VOLUME = b"5LKxgV"
_REFUSED = {
    ord("1"): "a hard link, wanted the file itself: tar --hard-dereference",
    ord("2"): "a symbolic link, wanted the file itself: tar --dereference",
    ord("3"): "a character device",
    ord("4"): "a block device",
    ord("6"): "a named pipe",
    ord("S"): "a sparse file: make the archive without --sparse",
    ord("M"): "a file that goes on from another volume: make the archive without --multi-volume",
}
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_PAX_RECORD = re.compile(rb"([1-9][0-9]{0,8}) ")


def walk(file: BinaryIO, size_bytes: int, shard: str) -> Iterator[list[File] | Files]:
    """Yield the regular files of an archive in their order, in chunks: ustar, GNU and PAX (POSIX.1-2001).

    Directories are skipped.

    Args:
        file: The archive, seekable.
        size_bytes: Its size.
        shard: Its name, for messages.

    Raises:
        ShardError: If it is not a whole, plain tar archive of directories and files.
    """
    raw = getattr(file, "raw", None)
    if not isinstance(raw, io.FileIO):
        raw = file  # else unbuffered: we know better what to read
    _refuse_what_is_not_tar(raw, shard)
    walker = _Walker(raw, size_bytes, shard)
    while not walker.ended:
        run = walker.advance_by_run()
        if run is not None:
            yield run
            continue
        try:
            walker.advance()
        except ShardError:
            walker.verify()  # of all that is wrong, name the first
            raise
        walker.verify()
        yield walker.files
        walker.files = []


class _Walker:
    def __init__(self, file: Any, size_bytes: int, shard: str) -> None:
        self.file, self.size_bytes, self.shard = file, size_bytes, shard
        self.offset = 0
        self.ended = False
        self.files: list[File] = []
        self._headers: list[bytes] = []  # not verified yet
        self._places: list[int] = []
        self._name: bytes | None = None  # what an extended header says of the next file
        self._size: int | None = None
        self._window, self._start = b"", 0
        self._count = _FEW  # headers to walk over before a run is looked for
        self._apart = 0  # mean bytes from one header to the next
        known = isinstance(file, io.FileIO) and hasattr(os, "preadv")  # elsewhere a run would have to be fetched
        self._runs = RunReader(file, size_bytes) if known else None

    def advance_by_run(self) -> Files | None:
        """Walk over ordinary headers that follow each other, all at once; None where there are none."""
        if self._runs is None or not self.offset or self._name is not None or self._size is not None:
            return None
        found = self._runs.read(self.offset, self._apart)
        self._count = _CHUNK if found is None or len(found[0]) < _FEW else _FEW
        if found is None:
            return None
        files, end = found
        self._apart = (end - self.offset) // max(len(files), 1)
        self.offset = end
        return files.without_directories()

    def advance(self) -> None:
        """Walk over a chunk of headers."""
        begin = self.offset
        self._walk_chunk(self._count)
        self._apart = (self.offset - begin) // self._count

    def _walk_chunk(self, count: int) -> None:
        for _ in range(count):
            offset = self.offset
            block = self._near(offset, BLOCK)
            if len(block) < BLOCK:
                raise self._error(offset, "the archive ends without its end mark: it is cut, or still being written")
            if block == _ZEROS:
                self._end()
                return
            self._headers.append(block)
            self._places.append(offset)
            kind = block[156]
            size = self._number(block[124:136], offset)
            if kind in _FILES:
                if self._size is not None:
                    size = self._size
                name = _name(block) if self._name is None else self._name
                self._name = self._size = None
                if not name.endswith(b"/"):  # else it is an old archive's directory
                    self.files.append((name, offset + BLOCK, size))
            elif kind in (_DIRECTORY, _VOLUME):
                self._name = self._size = None
                size = 0  # what it names, if anything, is not there
            else:
                self._extended(kind, size, block)
            self.offset = offset + BLOCK + (size + BLOCK - 1) // BLOCK * BLOCK
            if offset + BLOCK + size > self.size_bytes:
                shown = _name(block).decode(errors="replace")
                raise self._error(
                    offset,
                    f"{shown!r} has {size:,} bytes, the archive ends after {self.size_bytes - offset - BLOCK:,}",
                )

    def verify(self) -> None:
        """Compare the checksums of the headers that were not verified yet."""
        if not self._headers:
            return
        blocks = np.frombuffer(b"".join(self._headers), dtype=np.uint8).reshape(-1, BLOCK)
        for row in np.flatnonzero(~have_checksums(blocks)).tolist():
            place = self._places[row]
            raise self._error(
                place,
                "no tar header here: the archive is damaged" if place else "not a tar archive: it starts otherwise",
            )
        self._headers, self._places = [], []

    def _extended(self, kind: int, size: int, block: bytes) -> None:
        """Take what an extended header says of the next file, or refuse the member."""
        offset = self.offset
        if kind not in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            what = _REFUSED.get(kind, f"of type {bytes([kind])!r}, wanted files and directories")
            raise self._error(offset, f"{_name(block).decode(errors='replace')!r} is {what}")
        content = self._near(offset + BLOCK, size) if size <= _MOST_EXTENDED else b""
        if len(content) < size:
            raise self._error(offset, f"an extended header of {size:,} bytes is cut, or above {_MOST_EXTENDED:,}")
        if kind == _LONG_NAME:
            self._set_name(content.partition(b"\0")[0])
        elif kind != _LONG_LINK:
            records = self._records(content, offset)
            if any(name.startswith(b"GNU.sparse") for name in records):
                raise self._error(offset, f"what follows is {_REFUSED[ord('S')]}")
            if kind == _PAX_GLOBAL:
                if records.keys() & {b"path", b"size"}:
                    raise self._error(
                        offset, "a global header sets the path or size of all members; wanted each its own"
                    )
                return
            if b"path" in records:
                self._set_name(records[b"path"])
            if b"size" in records:
                self._size = self._number(records[b"size"], offset, base=10)

    def _set_name(self, name: bytes) -> None:
        if self._name is not None:
            raise self._error(self.offset, "a second extended header with a name for the same file")
        self._name = name

    def _records(self, content: bytes, offset: int) -> dict[bytes, bytes]:
        """Parse PAX records, "length name=value" and a newline each."""
        records, at = {}, 0
        while at < len(content) and content[at]:
            found = _PAX_RECORD.match(content, at)
            end = at + int(found[1]) if found else at
            name, equals, value = content[found.end() if found else at : end - 1].partition(b"=")
            if not found or end <= found.end() or content[end - 1 : end] != b"\n" or not equals:
                raise self._error(offset, "a damaged PAX header")
            records[name] = value
            at = end
        return records

    def _number(self, field: bytes, offset: int, base: int = 8) -> int:
        if field[:1] == b"\x80":  # GNU's way for sizes above 8 GiB
            return int.from_bytes(field[1:], "big")
        digits = field.partition(b"\0")[0].strip(b" ")
        try:
            if not digits.isdigit():
                raise ValueError
            return int(digits, base)
        except ValueError:
            if not digits:
                return 0
            raise self._error(offset, f"a header with the size {field!r}, wanted a number") from None

    def _end(self) -> None:
        """Make sure that nothing lies behind the end mark: readers of tar would not see it."""
        self.ended = True
        if self._name is not None or self._size is not None:
            raise self._error(self.offset, "the archive ends after an extended header, wanted its file")
        at = self.offset
        while rest := self._read(at, 1 << 20):
            if rest.strip(b"\0"):
                at += len(rest) - len(rest.lstrip(b"\0"))
                raise self._error(
                    at,
                    f"more data behind the archive's end at {self.offset:,}; if archives were joined by cat, "
                    "join them with tar --concatenate, or keep them apart",
                )
            at += len(rest)

    def _near(self, offset: int, size: int) -> bytes:
        """Read a little that often lies near what was read last."""
        begin = offset - self._start
        found = self._window[begin : begin + size]
        if len(found) < size:
            self._window, self._start = self._read(offset, max(size, _WINDOW)), offset
            found = self._window[:size]
        return found

    def _read(self, offset: int, size: int) -> bytes:
        self.file.seek(offset)
        found: bytes = self.file.read(size)
        return found

    def _error(self, offset: int, what: str) -> ShardError:
        return ShardError(f"{self.shard}, offset {offset:,}: {what}.")


def _refuse_what_is_not_tar(file: Any, shard: str) -> None:
    file.seek(0)
    start = file.read(BLOCK)
    if not start:
        raise ShardError(f"{shard}, offset 0: the file is empty, wanted a tar archive (one without members has zeros).")
    for magic, packer in _PACKED.items():
        if start.startswith(magic):
            raise ShardError(
                f"{shard}, offset 0: compressed with {packer}, where no sample can be found without unpacking all before "
                f"it. Unpack it ({packer} -d; pictures hardly shrink), or read it as a stream: lk.StreamDataset(paths, lk.TarReader())."
            )


def _name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    if block[345] and block[257:263] == b"ustar\0":  # GNU's own format has other things there
        return block[345:500].partition(b"\0")[0] + b"/" + name
    return name
