"""Lists and dicts of records in packed memory, for datasets that keep them and that many workers read."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import torch

from loaderkit.datasets.memory.packed import Packed

K = TypeVar("K")
V = TypeVar("V")


@overload
def share(records: Mapping[K, V]) -> "SharedDict[K, V]": ...
@overload
def share(records: Sequence[V]) -> "SharedList[V]": ...
def share(records: Any) -> Any:
    """Pack a dataset's list or dict of records, so that worker processes share it.

    A list of a million dicts is copied, page by page, into each worker that
    reads it, since reading an object counts its references. Packed they lie in
    a few tensors. What is returned reads like the list or dict, and can't be
    changed; each read gives a new object, equal to what was given.

    Args:
        records: A list, tuple or other sequence of anything that pickles; or a
            dict with keys of str, int, bytes, or tuples of these.

    Raises:
        TypeError: If it is neither, a record can't be pickled, or a key is of another type.
    """
    if isinstance(records, Mapping):
        return SharedDict(records)
    if isinstance(records, Sequence) and not isinstance(records, str | bytes | bytearray):
        return SharedList(records)
    raise TypeError(
        f"share: got {type(records).__name__}, wanted a list or dict of records. Arrays and tensors are shared as they are; "
        "make a list of anything else."
    )


class SharedList(Sequence[V]):
    """What `share` makes of a list."""

    def __init__(self, records: Sequence[V]) -> None:
        self._records = Packed(records, "share: record")

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> list[V]: ...
    def __getitem__(self, index: int | slice) -> Any:
        size = len(self)
        if isinstance(index, slice):
            return self._records.read(range(size)[index])
        if not -size <= index < size:
            raise IndexError(f"SharedList: index {index} in a list of {size:,}.")
        return self._records.read_one(index % size)

    def __iter__(self) -> Iterator[V]:
        for start in range(0, len(self), 256):
            yield from self[start : start + 256]

    def __repr__(self) -> str:
        return f"SharedList({len(self):,} records, {self._records.size_bytes:,} bytes)"


class SharedDict(Mapping[K, V]):
    """What `share` makes of a dict; in its order."""

    def __init__(self, records: Mapping[K, V]) -> None:
        hashes = np.array([_hash(key) for key in records], dtype=np.int64)
        self._keys, self._values = Packed(records.keys(), "share: key"), Packed(records.values(), "share: entry")
        self._rows = torch.from_numpy(np.argsort(hashes, kind="stable"))
        self._hashes = torch.from_numpy(hashes)[self._rows]

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, key: K) -> V:
        try:
            wanted = _hash(key)
        except TypeError:
            raise KeyError(key) from None
        hashes, rows = self._hashes.numpy(), self._rows.numpy()
        place = int(np.searchsorted(hashes, wanted))
        while place < len(hashes) and hashes[place] == wanted:
            row = int(rows[place])
            if self._keys.read_one(row) == key:
                return self._values.read_one(row)  # type: ignore[no-any-return]
            place += 1
        raise KeyError(key)

    def __iter__(self) -> Iterator[K]:
        for start in range(0, len(self), 256):
            yield from self._keys.read(range(start, min(start + 256, len(self))))

    def __repr__(self) -> str:
        return f"SharedDict({len(self):,} records, {self._keys.size_bytes + self._values.size_bytes:,} bytes)"


def _hash(key: Any) -> int:
    """Hash a key, the same in every process: Python's own hash of a string is not."""
    digest = hashlib.blake2b(_encode(key), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _encode(key: Any) -> bytes:
    if isinstance(key, str):
        return b"s" + key.encode(errors="surrogatepass")
    if isinstance(key, int):
        return b"i%d" % key
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, tuple):
        parts = [_encode(part) for part in key]
        return b"t" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    raise TypeError(f"share: key {key!r} is of {type(key).__name__}, wanted str, int, bytes, or tuples of these.")
