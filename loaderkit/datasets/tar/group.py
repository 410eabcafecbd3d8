"""Files of a tar shard grouped to samples many at once, where their names are usual."""

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.tar.headers import Bytes, Files
from loaderkit.system.arrays import Int64Array

_DOT, _SLASH, _LOW_LINE = ord("."), ord("/"), ord("_")
_WIDEST = 256  # bytes of a name
_MOST = 40  # extensions: each is a bit of a word, and a sample's bits are added up


class Grouper:
    """Puts the samples of a shard together from its files in their order, as long as all is usual.

    Not usual are names that lead elsewhere or may be metadata, keys and extensions
    that come again, and what makes no sample at all: `tartable.group` knows what is to be done about them.
    """

    def __init__(self) -> None:
        self.extensions: dict[str, int] = {}
        self._numbers: dict[bytes, int] = {}  # of extensions as they are written
        self._keys: list[Bytes] = []  # (S, W), with zeros behind
        self._lengths: list[Int64Array] = []  # of keys
        self._begins: list[npt.NDArray[np.bool_]] = []  # whether a member is a sample's first
        self._members: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        self._key: bytes | None = None  # of the last member

    def add(self, files: Files) -> bool:
        """Take the next files; False if something about them is not usual."""
        if not len(files):
            return True
        names, places, sizes = files.names, files.places, files.sizes
        if not 2 <= names.shape[1] <= _WIDEST:
            return False
        columns = np.ascontiguousarray(names.T)  # numpy is quick along the longer side
        dots = columns == _DOT
        if not _are_plain(columns, dots):
            return False
        ends, kept = _key_ends(columns, dots)
        if not kept.all():
            names, columns = names[kept], columns[:, kept]
            places, sizes, ends = places[kept], sizes[kept], ends[kept]
        if not len(names):
            return True
        numbers = self._number(_extensions(names, ends))
        if numbers is None:
            return False
        begins = _begins(columns, ends)
        begins[0] = names[0, : ends[0]].tobytes() != self._key
        self._key = names[-1, : ends[-1]].tobytes()
        self._begins.append(begins)
        self._members.append((places, sizes, numbers))
        self._keys.append(_cut(names[begins], ends[begins]))
        self._lengths.append(ends[begins])
        return True

    def finish(self) -> tuple[Int64Array, Int64Array, bytes] | None:
        """Return members, ends and keys as a TarTable has them; None if something is not usual."""
        if not self._members or not _are_distinct(self._keys):
            return None
        places, sizes, numbers = (np.concatenate(parts) for parts in zip(*self._members, strict=True))
        starts = np.flatnonzero(np.concatenate(self._begins))
        ends = np.empty((len(starts), 2), dtype=np.int64)
        ends[:-1, 0], ends[-1, 0] = starts[1:], len(places)
        np.cumsum(np.concatenate(self._lengths), out=ends[:, 1])
        bits = np.left_shift(1, numbers)
        if np.max(ends[:, 0] - starts) > _MOST:
            return None
        if np.any(np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)):
            return None  # an extension comes twice in a sample
        keys = b"".join((rows if rows.all() else rows[rows != 0]).tobytes() for rows in self._keys)
        return np.stack([places, sizes, numbers], axis=1), ends, keys

    def _number(self, extensions: npt.NDArray[np.uint64]) -> Int64Array | None:
        """Return the numbers (N,) of extensions, as words (N, E); None if there are too many, or one is not usual."""
        numbers = np.full(len(extensions), -1, dtype=np.int64)
        known = iter(list(self._numbers.items()))
        while len(left := np.flatnonzero(numbers < 0)):
            name, number = next(known, (b"", -1))
            if number < 0:
                name = extensions[left[0]].tobytes().rstrip(b"\0")
                text = name.decode(errors="surrogateescape").lower()
                if text == "__key__" or len(self._numbers) == _MOST:
                    return None
                number = self._numbers[name] = self.extensions.setdefault(text, len(self.extensions))
            width = extensions.shape[1]
            if len(name) <= width * 8:
                word = np.frombuffer(name.ljust(width * 8, b"\0"), dtype="<u8")
                numbers[(extensions == word).all(axis=1) if width > 1 else extensions[:, 0] == word[0]] = number
        return numbers


def _are_plain(columns: Bytes, dots: npt.NDArray[np.bool_]) -> bool:
    """Say whether no name, of columns (W, N), is empty, absolute, or may be metadata or one with `..`."""
    first = columns[0]
    strange = (first == 0) | (first == _SLASH) | ((first == _LOW_LINE) & (columns[1] == _LOW_LINE))
    return not (strange.any() or np.any(dots[1:] & dots[:-1]))


def _key_ends(columns: Bytes, dots: npt.NDArray[np.bool_]) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return where the first dot of the base name is (N,), and whether there is a key before and an extension behind it."""
    width, count = columns.shape
    slashes = columns == _SLASH
    begins: Int64Array | int = 0
    if slashes.any():
        behind = slashes[::-1].argmax(axis=0)
        begins = np.where(slashes.any(axis=0), width - behind, 0)
        dots = dots & (np.arange(width)[:, None] >= begins)
    every = np.logical_and.reduce(dots, axis=1)
    first = int(every.argmax())
    # Most often all names have their first dot in the same column.
    alike = every[first] and not dots[:first].any()
    ends = np.full(count, first) if alike else dots.argmax(axis=0)
    names = np.arange(count)
    goes_on = columns[np.minimum(ends + 1, width - 1), names] != 0
    return ends, dots[ends, names] & (ends > begins) & (ends < width - 1) & goes_on


def _extensions(names: Bytes, ends: Int64Array) -> npt.NDArray[np.uint64]:
    """Return what names (N, W) have behind their ends (N,), as words (N, E) with zeros behind."""
    shortest = int(ends.min())
    longest = names.shape[1] - shortest - 1
    found = np.zeros((len(names), -(-longest // 8) * 8), dtype=np.uint8)
    if shortest == ends.max():
        found[:, :longest] = names[:, shortest + 1 :]
    else:
        columns = ends[:, None] + np.arange(1, longest + 1)
        inside = columns < names.shape[1]
        found[:, :longest] = np.take_along_axis(names, np.where(inside, columns, 0), axis=1) * inside
    return found.view("<u8")


def _begins(columns: Bytes, ends: Int64Array) -> npt.NDArray[np.bool_]:
    """Say which names, of columns (W, N), have another key than the one before; the first has."""
    longest = int(ends.max())
    differ = columns[:longest, 1:] != columns[:longest, :-1]
    found = np.ones(len(ends), dtype=np.bool_)
    if longest == ends.min():
        np.any(differ, axis=0, out=found[1:])
    else:
        differ &= np.arange(longest)[:, None] < ends[1:]
        found[1:] = differ.any(axis=0) | (ends[1:] != ends[:-1])
    return found


def _cut(names: Bytes, ends: Int64Array) -> Bytes:
    """Return names (S, W) up to their ends (S,), with zeros behind."""
    if not len(names):
        return names
    longest = int(ends.max())
    names = names[:, :longest]
    return np.ascontiguousarray(names if longest == ends.min() else names * (np.arange(longest) < ends[:, None]))


def _are_distinct(keys: list[Bytes]) -> bool:
    """Say whether all keys, each of the (S, W) with zeros behind, are different."""
    rows = np.concatenate([part.view(f"S{part.shape[1]}").ravel() for part in keys if len(part)])
    if np.all(rows[1:] > rows[:-1]):  # as most often: files are written in their order
        return True
    return len(set(rows.tolist())) == len(rows)
