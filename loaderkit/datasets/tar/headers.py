"""Headers of a tar archive, read one at a time: each gives the offset of the next."""

import io
import os
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO
from zlib import adler32

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.lines import COMPRESSED

File = tuple[bytes, int, int]  # name, and offset and size of the content in bytes
Read = Callable[[int, int], bytes]  # from offset and size to bytes

_BLOCK = 512
_END = bytes(_BLOCK)
_MOST_EXTENDED = 1 << 20  # bytes of an extended header
_FILES = b"0\x007"
_NO_CONTENT = b"5V"  # directories and volume labels
_EXTENDED = _LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"LKxg"
_REFUSED = {
    ord("1"): "a hard link, wanted the file itself: tar --hard-dereference",
    ord("2"): "a symbolic link, wanted the file itself: tar --dereference",
    ord("3"): "a character device",
    ord("4"): "a block device",
    ord("6"): "a named pipe",
    ord("S"): "a sparse file: make the archive without --sparse",
    ord("M"): "a file continued from another volume: make the archive without --multi-volume",
}
_PAX_RECORD = re.compile(rb"([1-9][0-9]{0,8}) ")  # its length, including these digits


def read_headers(file: BinaryIO, size_bytes: int, shard: str) -> Iterator[File]:
    """Yield the regular files of an archive (ustar, GNU or PAX, POSIX.1-2001) in their order.

    Raises:
        ShardError: If the file is not a complete, uncompressed tar archive of files and directories.
    """
    read = _reader(file)
    _refuse_other_files(read(0, _BLOCK), shard)
    offset = 0
    override: dict[bytes, bytes] = {}  # the next file's path and size, from extended headers
    while (header := _read_header(read, offset, shard)) != _END:
        kind, size = header[156], _number(header[124:136])
        if size < 0:
            raise shard_error(shard, offset, f"a header with the size {header[124:136]!r}, wanted a number")
        if kind in _FILES:
            name = _name(header)
            if override:
                name = override.get(b"path", name)
                size = _number(override[b"size"], base=10) if b"size" in override else size
                override = {}
            left = size_bytes - offset - _BLOCK
            if size > left:
                raise shard_error(
                    shard, offset, f"{_shown(header)} has {size:,} bytes, the archive ends after {left:,}"
                )
            if name[-1:] != b"/":  # old archives mark a directory by the slash alone
                yield name, offset + _BLOCK, size
        elif kind in _EXTENDED:
            records = _read_extended(read, kind, size, shard, offset)
            if b"path" in records and b"path" in override:
                raise shard_error(shard, offset, "a second extended header with a name for the same file")
            override |= records
        elif kind in _NO_CONTENT:
            size, override = 0, {}
        else:
            what = _REFUSED.get(kind, f"of type {bytes([kind])!r}, wanted files and directories")
            raise shard_error(shard, offset, f"{_shown(header)} is {what}")
        offset += _BLOCK + (size + _BLOCK - 1 & -_BLOCK)
    if override:
        raise shard_error(shard, offset, "the archive ends after an extended header, wanted its file")
    _refuse_more(read, offset, shard)


def shard_error(shard: str, offset: int, what: str) -> ShardError:
    """Return an error that names a shard and a byte offset in it."""
    return ShardError(f"{shard}, offset {offset:,}: {what}.")


def _reader(file: BinaryIO) -> Read:
    if isinstance(getattr(file, "raw", None), io.FileIO):
        number = file.fileno()  # headers are often far apart, so reading ahead does not pay
        return lambda offset, size: os.pread(number, size, offset)

    def read(offset: int, size: int) -> bytes:
        file.seek(offset)
        return file.read(size)

    return read


def _refuse_other_files(start: bytes, shard: str) -> None:
    if not start:
        raise shard_error(shard, 0, "the file is empty, wanted a tar archive (one without members has zeros)")
    for magic, packer in COMPRESSED.items():
        if start.startswith(magic):
            raise shard_error(
                shard,
                0,
                f"compressed with {packer}, so samples have no fixed place. Unpack it ({packer} -d; pictures hardly "
                "shrink), or read it as a stream: lk.StreamDataset(paths, lk.TarReader())",
            )


def _read_header(read: Read, offset: int, shard: str) -> bytes:
    """Return the header at an offset after checking its checksum, or the end mark."""
    header = read(offset, _BLOCK)
    if len(header) < _BLOCK:
        raise shard_error(
            shard, offset, "the archive ends without its end mark: it is cut, or a program is still writing it"
        )
    if header == _END:
        return _END
    # The lower half of Adler-32 is 1 plus the sum of the bytes modulo 65,521. 256 bytes stay below that.
    sums = (adler32(header[:148]) & 0xFFFF) + (adler32(header[156:412]) & 0xFFFF) + (adler32(header[412:]) & 0xFFFF)
    total = sums - 3 + 8 * ord(" ")  # the checksum's own field counts as 8 spaces
    if _number(header[148:156]) != total:
        what = "no tar header here: the archive is damaged" if offset else "not a tar archive: no tar header here"
        raise shard_error(shard, offset, what)
    return header


def _read_extended(read: Read, kind: int, size: int, shard: str, offset: int) -> dict[bytes, bytes]:
    """Return the "path" and "size" that an extended header gives to the next file, as far as it does."""
    content = read(offset + _BLOCK, size) if size <= _MOST_EXTENDED else b""
    if len(content) < size:
        raise shard_error(shard, offset, f"an extended header of {size:,} bytes is cut, or above {_MOST_EXTENDED:,}")
    if kind == _LONG_LINK:
        return {}
    if kind == _LONG_NAME:
        return {b"path": content.partition(b"\0")[0]}
    records = _pax_records(content, shard, offset)
    if any(name.startswith(b"GNU.sparse") for name in records):
        raise shard_error(shard, offset, f"what follows is {_REFUSED[ord('S')]}")
    records = {name: records[name] for name in (b"path", b"size") if name in records}
    if kind == _PAX_GLOBAL and records:
        raise shard_error(shard, offset, "a global header sets the path or size of all members; wanted each its own")
    if b"size" in records and _number(records[b"size"], base=10) < 0:
        raise shard_error(shard, offset, f"a header with the size {records[b'size']!r}, wanted a number")
    return records


def _pax_records(content: bytes, shard: str, offset: int) -> dict[bytes, bytes]:
    """Parse PAX records, each "length name=value" and a newline. Return values by name."""
    records, at = {}, 0
    while at < len(content) and content[at]:
        found = _PAX_RECORD.match(content, at)
        end = at + int(found[1]) if found else at
        name, equals, value = content[found.end() if found else at : end - 1].partition(b"=")
        if not found or end <= found.end() or content[end - 1 : end] != b"\n" or not equals:
            raise shard_error(shard, offset, "a damaged PAX header")
        records[name] = value
        at = end
    return records


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[345] and header[257:263] == b"ustar\0":  # GNU's format has other fields here
        return header[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _shown(header: bytes) -> str:
    return repr(_name(header).decode(errors="replace"))


def _number(field: bytes, base: int = 8) -> int:
    """Return the number in a header's field, by default octal; 0 if the field is empty, -1 if it is not a number."""
    digits = field.partition(b"\0")[0]
    if not digits.isdigit():
        if field[:1] == b"\x80":  # GNU's form for sizes above 8 GiB
            return int.from_bytes(field[1:], "big")
        digits = digits.strip(b" ")
        if not digits.isdigit():
            return -1 if digits else 0
    try:
        return int(digits, base)
    except ValueError:  # an 8 or a 9
        return -1


def _refuse_more(read: Read, end: int, shard: str) -> None:
    """Raise a ShardError for data after the end mark at `end`, which tar readers would skip."""
    offset = end
    while content := read(offset, 1 << 20):
        if content.strip(b"\0"):
            offset += len(content) - len(content.lstrip(b"\0"))
            raise shard_error(
                shard,
                offset,
                f"more data after the archive's end at {end:,}; if archives were joined by cat, "
                "join them with tar --concatenate, or keep them apart",
            )
        offset += len(content)
