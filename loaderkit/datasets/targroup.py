"""Files of a tar shard grouped to samples many at once, where their names are usual."""

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.tarheaders import Bytes, Files, lengths
from loaderkit.seeding import Int64Array

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
        self._keys: list[bytes] = []
        self._lengths: list[Int64Array] = []  # of keys
        self._begins: list[npt.NDArray[np.bool_]] = []  # whether a member is a sample's first
        self._members: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        self._seen: set[bytes] = set()
        self._samples = 0
        self._key: bytes | None = None  # of the last member

    def add(self, files: Files) -> bool:
        """Take the next files; False if something about them is not usual."""
        names, places, sizes = files.names, files.places, files.sizes
        if not len(names):
            return True
        if names.shape[1] > _WIDEST or not _are_plain(names):
            return False
        ends, kept = _key_ends(names)
        if not kept.all():
            names, places, sizes, ends = names[kept], places[kept], sizes[kept], ends[kept]
        if not len(names):
            return True
        numbers = self._number(_extensions(names, ends))
        if numbers is None:
            return False
        begins = np.empty(len(names), dtype=np.bool_)
        begins[0] = names[0, : ends[0]].tobytes() != self._key
        differ = (names[1:] != names[:-1]).argmax(axis=1)
        begins[1:] = (differ <= ends[1:]) | (ends[1:] != ends[:-1])
        self._key = names[-1, : ends[-1]].tobytes()
        self._begins.append(begins)
        self._members.append((places, sizes, numbers))
        return self._add_keys(names[begins], ends[begins])

    def finish(self) -> tuple[Int64Array, Int64Array, bytes] | None:
        """Return members, ends and keys as a TarTable has them; None if something is not usual."""
        if not self._samples:
            return None
        places, sizes, numbers = (np.concatenate(parts) for parts in zip(*self._members, strict=True))
        starts = np.flatnonzero(np.concatenate(self._begins))
        ends = np.empty((self._samples, 2), dtype=np.int64)
        ends[:-1, 0], ends[-1, 0] = starts[1:], len(places)
        np.cumsum(np.concatenate(self._lengths), out=ends[:, 1])
        bits = np.left_shift(1, numbers)
        if np.max(ends[:, 0] - starts) > _MOST:
            return None
        if np.any(np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)):
            return None  # an extension comes twice in a sample
        return np.stack([places, sizes, numbers], axis=1), ends, b"".join(self._keys)

    def _number(self, extensions: npt.NDArray[np.uint64]) -> Int64Array | None:
        """Return the numbers (N,) of extensions, as words (N, E)."""
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

    def _add_keys(self, names: Bytes, ends: Int64Array) -> bool:
        """Take keys, which names (S, W) have up to their ends (S,); False if one has come before."""
        if not len(names):
            return True
        within = np.arange(names.shape[1]) < ends[:, None]
        self._keys.append(names[within].tobytes())
        self._lengths.append(ends)
        self._seen.update(np.where(within, names, 0).view(f"S{names.shape[1]}").ravel().tolist())
        self._samples += len(names)
        return len(self._seen) == self._samples


def _are_plain(names: Bytes) -> bool:
    """Say whether no name is empty, absolute, or may be metadata or one with `..`."""
    if names.shape[1] < 2:
        return False  # so short
    first, dots = names[:, 0], names == _DOT
    strange = (first == 0) | (first == _SLASH) | ((first == _LOW_LINE) & (names[:, 1] == _LOW_LINE))
    return not (strange.any() or np.any(dots[:, 1:] & dots[:, :-1]))


def _key_ends(names: Bytes) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return where the first dot of the base name is (N,), and whether there is a key before and an extension behind it."""
    rows, dots = np.arange(len(names)), names == _DOT
    begins: Int64Array | int = 0
    slashes = names == _SLASH
    if slashes.any():
        behind = slashes[:, ::-1].argmax(axis=1)
        begins = np.where(slashes.any(axis=1), names.shape[1] - behind, 0)
        dots &= np.arange(names.shape[1]) >= begins[:, None]
    every = dots.all(axis=0)
    first = int(every.argmax())
    # Most often all names have their first dot in the same column.
    alike = bool(every[first]) and not dots[:, :first].any()
    ends = np.full(len(names), first) if alike else dots.argmax(axis=1)
    return ends, dots[rows, ends] & (ends > begins) & (ends < lengths(names) - 1)


def _extensions(names: Bytes, ends: Int64Array) -> npt.NDArray[np.uint64]:
    """Return what names (N, W) have behind their ends (N,), as words (N, E) with zeros behind."""
    shortest = int(ends.min())
    longest = int(np.max(lengths(names) - ends)) - 1
    found = np.zeros((len(names), -(-longest // 8) * 8), dtype=np.uint8)
    if shortest == ends.max():
        found[:, :longest] = names[:, shortest + 1 : shortest + 1 + longest]
    else:
        columns = ends[:, None] + np.arange(1, longest + 1)
        inside = columns < names.shape[1]
        found[:, :longest] = np.take_along_axis(names, np.where(inside, columns, 0), axis=1) * inside
    return found.view("<u8")
