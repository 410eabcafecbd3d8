"""Headers of a tar archive, many at once: which are right, which follow each other, and what they name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderkit.system.arrays import Int64Array

Bytes = npt.NDArray[np.uint8]
File = tuple[bytes, int, int]  # name, and offset and size of the content
Words = npt.NDArray[Any]  # uint64

BLOCK = 512
EXTENDED = ord("x")  # the type of a header that says more of the next file
_ROWS = 16  # that are reduced as one

_MAGIC = int.from_bytes(b"\0ustar\0\0", "little")
_MAGIC_MASK = int.from_bytes(b"\0\xff\xff\xff\xff\xff\0\0", "little")
_ZEROS = int.from_bytes(b"0" * 8, "little")
_DIGITS = int.from_bytes(b"\xf8" * 8, "little")  # what is the same in all octal digits
_FOUR = (1 << 32) - 1  # the first bytes of a word
_EVEN = 0x00FF00FF00FF00FF
_LOW_HALVES = 0x0000FFFF0000FFFF
_MTIME = int.from_bytes(b" mtime", "little")
_SUMMED = np.full(BLOCK // 8, (1 << 64) - 1, dtype="<u8")  # all of a header but its checksum, bytes 148 to 155
_SUMMED[18:20] = _FOUR, _FOUR << 32


@dataclass(frozen=True, slots=True)
class Files:
    """Files of an archive, in its order.

    Args:
        names: (N, W), with zeros behind.
        places: (N,): offsets of their contents.
        sizes: (N,), in bytes.
    """

    names: Bytes
    places: Int64Array
    sizes: Int64Array

    def __len__(self) -> int:
        return len(self.places)

    @classmethod
    def of(cls, files: Sequence[File]) -> "Files | None":
        """Return files as arrays; None if a name has a zero byte."""
        names = [name for name, _, _ in files]
        if b"\0" in b"".join(names):
            return None
        rows = np.array(names, dtype=np.bytes_)
        numbers = np.array([file[1:] for file in files], dtype=np.int64).reshape(-1, 2)
        return cls(rows.view(np.uint8).reshape(len(names), rows.itemsize), numbers[:, 0], numbers[:, 1])

    @classmethod
    def join(cls, parts: "Sequence[Files]") -> "Files":
        """Lay files end to end."""
        parts = [part for part in parts if len(part)]
        if len(parts) == 1:
            return parts[0]
        names = np.zeros(
            (sum(map(len, parts)), max((part.names.shape[1] for part in parts), default=1)), dtype=np.uint8
        )
        at = 0
        for part in parts:
            names[at : at + len(part), : part.names.shape[1]] = part.names
            at += len(part)
        nothing = [np.empty(0, dtype=np.int64)]
        return cls(
            names,
            np.concatenate([part.places for part in parts] or nothing),
            np.concatenate([part.sizes for part in parts] or nothing),
        )

    def without_directories(self) -> "Files":
        """Drop names that end in a slash, which old archives have for directories."""
        ends = lengths(self.names) - 1
        kept = self.names[np.arange(len(ends)), ends] != ord("/")
        return self if kept.all() else Files(self.names[kept], self.places[kept], self.sizes[kept])

    def __iter__(self) -> Iterator[File]:
        names = self.names.view(f"S{self.names.shape[1]}").ravel().tolist()
        return zip(names, self.places.tolist(), self.sizes.tolist(), strict=True)


def lengths(names: Bytes) -> Int64Array:
    """Return how long names (N, W) are, with zeros behind."""
    if names[:, -1].all():
        return np.full(len(names), names.shape[1], dtype=np.int64)
    found: Int64Array = np.count_nonzero(names, axis=1)
    return found


def find_headers(blocks: Bytes) -> Int64Array:
    """Return which of the blocks (B, 512) have the magic word of a header of the ustar and GNU formats."""
    return np.flatnonzero(_have_magic(blocks.view("<u8")))


def find_run(headers: Bytes, contents: Bytes, places: Int64Array) -> tuple[Files, int]:
    """Return the files of the ordinary headers at the start, each where the one before it says; and where these end.

    Ordinary are files of the ustar and GNU formats with octal sizes, whose names stand in one field, and
    whose checksums are right; and extended headers that tell a file's time alone, as Python's
    tarfile writes them. What looks like a header within a file is passed over, as
    the file's own header leads past it.

    Args:
        headers: (N, 512).
        contents: (E, 512), the block behind each of those that are extended.
        places: (N,), increasing: offsets of the headers in bytes.

    Returns:
        The files, and the offset of the first header that is not among these.
    """
    words = headers.view("<u8")
    # Most of a header is the same in all: what these two say holds for each.
    ones, zeros = _over_rows(np.bitwise_or, words), _over_rows(np.bitwise_and, words)
    some, every = ones.view(np.uint8), zeros.view(np.uint8)
    same = ones == zeros
    sizes, sums, right = _numbers(words)
    right &= sums == _sums(words, ones, same)
    magic = {int(ones[32]) & _MAGIC_MASK, int(zeros[32]) & _MAGIC_MASK}
    alike = some[156] == every[156] == ord("0") and not some[345] and magic == {_MAGIC}
    if not alike:
        right &= _have_magic(words)
        extended = headers[:, 156] == EXTENDED
        ordinary = right & ((headers[:, 156] == ord("0")) | (headers[:, 156] == 0)) & (headers[:, 345] == 0)
        ordinary[extended] = right[extended] & _tell_time_alone(contents, sizes[extended])
        right = ordinary
    after = places + BLOCK + (sizes + (BLOCK - 1) & -BLOCK)
    taken = _follow(places, after, right)
    end = int(after[taken[-1]]) if len(taken) else int(places[0])
    names = headers[:, : _width(some[:100])]
    if not alike or len(taken) < len(headers):
        taken = taken if alike else taken[~extended[taken]]
        names, places, sizes = names[taken], places[taken], sizes[taken]
    return Files(_trimmed(names), places + BLOCK, sizes), end


def _follow(places: Int64Array, after: Int64Array, ordinary: npt.NDArray[np.bool_]) -> Int64Array:
    """Return the headers (N,) that lead from one to the next from the first on, up to one that is not ordinary."""
    stops = np.flatnonzero(~ordinary)
    length = int(stops[0]) if len(stops) else len(places)
    hops = np.flatnonzero(after[: max(length - 1, 0)] != places[1:length])
    if not len(hops):
        return np.arange(length)
    following = np.searchsorted(places, after)
    following[after != np.append(places, -1)[following]] = len(places)  # nothing is known there
    following[~ordinary] = -1
    taken, at, table = [], 0, following.tolist()
    while at < len(table) and table[at] >= 0:
        taken.append(at)
        at = table[at]
    return np.array(taken, dtype=np.int64)


def _width(used: Bytes) -> int:
    """Return where the last column ends in which a name has something."""
    columns = np.flatnonzero(used)
    return int(columns[-1]) + 1 if len(columns) else 1


def _trimmed(names: Bytes) -> Bytes:
    """Return a copy of names (N, W), W as long as the longest, with zeros behind each."""
    names = names.copy()  # always: they lie in memory that is read into again
    if names.all():
        return names
    past = np.logical_or.accumulate(names == 0, axis=1)
    if np.any(names[past]):  # old contents of a writer's buffer
        names[past] = 0
    return names[:, : _width(np.bitwise_or.reduce(names, axis=0))]


def _have_magic(words: Words) -> npt.NDArray[np.bool_]:
    return np.asarray((words[:, 32] & _MAGIC_MASK) == _MAGIC)


def _over_rows(function: np.ufunc, words: Words) -> Words:
    """Reduce words (N, 64) to (64,), by a function for which it makes no difference if some come twice."""
    if len(words) >= _ROWS:
        # Several rows as one: numpy's innermost loop is then longer.
        long = words[: len(words) // _ROWS * _ROWS].reshape(-1, _ROWS * words.shape[1])
        words = np.concatenate([function.reduce(long, axis=0).reshape(_ROWS, -1), words[-_ROWS:]])
    return np.asarray(function.reduce(words, axis=0))


def _numbers(words: Words) -> tuple[Int64Array, Words, npt.NDArray[np.bool_]]:
    """Return the sizes (N,) and the checksums (N,) that headers as words (N, 64) name, and whether they are as usual.

    Sizes are eleven octal digits, checksums six or seven, each with a zero or a space behind.
    """
    fields = np.empty((3, len(words)), dtype="<u8")  # eight digits each
    size, checksum = words[:, 16], (words[:, 18] >> 32) | (words[:, 19] << 32)
    fields[0] = (words[:, 15] & (_FOUR << 32)) | (_ZEROS & _FOUR)
    fields[1] = (size << 8) | (_ZEROS & 0xFF)
    seven = (checksum >> 48) & 0xF8 == ord("0")
    fields[2] = np.where(seven, (checksum << 8) | (_ZEROS & 0xFF), (checksum << 16) | (_ZEROS & 0xFFFF))
    ended = ((size | checksum) >> 56) & 0xDF == 0
    right = ((fields & _DIGITS) == _ZEROS).all(axis=0) & ended
    numbers = _octal(fields)
    return ((numbers[0] << 21) + numbers[1]).astype(np.int64), numbers[2], right


def _octal(words: Words) -> Words:
    """Return the numbers of words of eight octal digits, the first of which is the lowest byte."""
    words = words ^ _ZEROS
    words = ((words & _EVEN) << 3) + ((words >> 8) & _EVEN)
    words = ((words & _LOW_HALVES) << 6) + ((words >> 16) & _LOW_HALVES)
    return ((words & _FOUR) << 12) + (words >> 32)


def _tell_time_alone(contents: Bytes, sizes: Int64Array) -> npt.NDArray[np.bool_]:
    """Say which extended headers (E, 512) are one record, "30 mtime=1763728000.1234567" and a newline."""
    if not len(contents):
        return np.empty(0, dtype=np.bool_)
    starts = contents.view("<u8")[:, 0] >> 16
    tens, ones = contents[:, 0].astype(np.int64) - ord("0"), contents[:, 1].astype(np.int64) - ord("0")
    known = (starts == _MTIME) & (contents[:, 8] == ord("=")) & (tens >= 1) & (tens <= 9) & (ones >= 0) & (ones <= 9)
    known &= (sizes == tens * 10 + ones) & (sizes >= 10)
    ends = np.clip(sizes - 1, 0, BLOCK - 1)
    return np.asarray(known & (contents[np.arange(len(contents)), ends] == ord("\n")))


def _sums(words: Words, ones: Words, same: npt.NDArray[np.bool_]) -> Words:
    """Return the sums of the bytes of headers as words (N, 64), their checksums' fields as spaces.

    Args:
        words: The headers.
        ones: (64,), all joined by or.
        same: (64,), whether a word is the same in all: those are added up once.
    """
    differ = np.flatnonzero(~same)
    rest = words.T[differ] & _SUMMED[differ, None]
    pairs = np.add.reduce((rest & _EVEN) + ((rest >> 8) & _EVEN), axis=0)  # four sums of 16 bits: below 64 * 510
    fours = (pairs & _LOW_HALVES) + ((pairs >> 16) & _LOW_HALVES)
    known = int((ones & _SUMMED)[same].view(np.uint8).sum(dtype=np.int64)) + 8 * ord(" ")
    return np.asarray((fours & _FOUR) + (fours >> 32) + np.uint64(known))


def have_checksums(blocks: Bytes) -> npt.NDArray[np.bool_]:
    """Say which headers (N, 512) have the checksum that they name, in whatever way."""
    field = blocks[:, 148:156].astype(np.int64)
    sums = blocks.sum(axis=1, dtype=np.int64) - field.sum(axis=1) + 8 * ord(" ")
    named, digits = np.zeros(len(blocks), dtype=np.int64), np.zeros(len(blocks), dtype=np.int64)
    for column in field.T:
        digit = (column >= ord("0")) & (column < ord("8"))
        named = np.where(digit, named * 8 + column - ord("0"), named)
        digits += digit
    return np.asarray((named == sums) & (digits > 0))
