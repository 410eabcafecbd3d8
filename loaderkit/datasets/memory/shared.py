"""Lists and dicts in memory that worker processes share, for a user's own dataset class."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """Pack a list or dict of records into memory that worker processes share.

    Use it in a dataset class that keeps a large list or dict. The result reads like
    the original but cannot be changed. Each read returns a new object.

    Args:
        records: A list, tuple or other sequence of objects that pickle; or a
            dict of them, with keys of str, int, bytes, or tuples of these.

    Raises:
        TypeError: If `records` is neither a sequence nor a dict, a record cannot be pickled, or a key is of another
            type.

    Examples:
        >>> captions = lk.share({"a.jpg": "a cat", "b.jpg": "a dog"})
        >>> captions["b.jpg"], len(captions), list(captions)
        ('a dog', 2, ['a.jpg', 'b.jpg'])
    """
    if isinstance(records, Mapping):
        return SharedDict(records)
    if isinstance(records, Sequence) and not isinstance(records, str | bytes | bytearray):
        return SharedList(records)
    raise TypeError(
        f"share: got {type(records).__name__}, wanted a list or dict of records. Arrays and tensors need no share(); "
        "make a list of anything else."
    )


class SharedList(Sequence[V]):
    """The list that `share` returns: read-only, and each read makes a new object."""

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

    def __repr__(self) -> str:
        return f"SharedList({len(self):,} records, {self._records.size_bytes:,} bytes)"


class SharedDict(Mapping[K, V]):
    """The dict that `share` returns: read-only, in the order of the original. Each read makes a new object.

    `hash_key` returns a hash of a key in the range of int64, which must be the same in every process.
    """

    def __init__(self, records: Mapping[K, V], *, hash_key: Callable[[Any], int] | None = None) -> None:
        self._hash_key = hash_key or _hash
        hashes = np.array([self._hash_key(key) for key in records], dtype=np.int64)
        self._keys, self._values = Packed(records.keys(), "share: key"), Packed(records.values(), "share: entry")
        self._rows = torch.from_numpy(np.argsort(hashes, kind="stable"))
        self._hashes = torch.from_numpy(hashes)[self._rows]

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, key: K) -> V:
        try:
            wanted = self._hash_key(key)
        except TypeError:
            raise KeyError(key) from None
        hashes = self._hashes.numpy()
        for place in range(int(np.searchsorted(hashes, wanted)), len(hashes)):
            if hashes[place] != wanted:
                break
            row = int(self._rows[place])
            if self._keys.read_one(row) == key:
                return self._values.read_one(row)  # type: ignore[no-any-return]  # what was packed comes back
        raise KeyError(key)

    def __iter__(self) -> Iterator[K]:
        return map(self._keys.read_one, range(len(self)))

    def __repr__(self) -> str:
        return f"SharedDict({len(self):,} records, {self._keys.size_bytes + self._values.size_bytes:,} bytes)"


def _hash(key: object) -> int:
    """Return a hash (int64) that is the same in every process, unlike Python's hash of a string."""
    digest = hashlib.blake2b(_encode(key), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _encode(key: object) -> bytes:
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
