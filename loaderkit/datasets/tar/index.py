"""The index of a tar shard: its samples and where their files are, in a few flat arrays."""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.tar.headers import File, read_headers, shard_error
from loaderkit.system.arrays import Int64Array

_METADATA = re.compile(rb"__[^/]*__(/|$)")  # webdataset's rule


@dataclass(frozen=True, slots=True)
class TarTable:
    """The N samples of a shard and their M files.

    Args:
        members: (M, 3) int64: each file's offset in bytes, size in bytes, and index in `extensions`.
        ends: (N, 2) int64: where each sample ends in `members` and in `keys`.
        keys: All samples' keys, concatenated, as bytes.
        extensions: The distinct extensions.
    """

    members: Int64Array
    ends: Int64Array
    keys: Any  # bytes-like
    extensions: list[str]

    def fits(self, count: int, size_bytes: int) -> bool:
        """Return whether the table has `count` samples, and all its numbers are in range for a shard of this size."""
        names, parts = self.extensions, (self.members, self.ends)
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names) and len(self.ends) == count):
            return False
        if not count:
            return not len(self.members)
        offsets, sizes, numbers = self.members.T
        in_order = all(bool((np.diff(ends, prepend=0) >= 0).all()) for ends in self.ends.T)
        return bool(
            in_order
            and self.ends[-1, 0] == len(self.members)
            and self.ends[-1, 1] <= len(self.keys)
            and all(part.min() >= 0 for part in parts)
            and numbers.max() < len(names)
            and (sizes <= size_bytes - offsets).all()
        )

    def samples(self, rows: list[int]) -> tuple[list[str], list[int], tuple[list[int], list[int], list[int]]]:
        """Return samples' keys (B,), numbers of files (B,), and these files' offsets, sizes and extensions (F,)."""
        # Lists are faster than numpy here: decoding pictures leaves the CPU's caches cold.
        ends, members = (memoryview(array.reshape(-1).data) for array in (self.ends, self.members))
        keys: list[str] = []
        counts: list[int] = []
        found: list[int] = []
        for row in rows:
            first, begin, last, end = ends[2 * row - 2 : 2 * row + 2].tolist() if row else (0, 0, *ends[:2])
            keys.append(str(self.keys[begin:end], "utf-8", "surrogateescape"))
            counts.append(last - first)
            found += members[3 * first : 3 * last].tolist()
        return keys, counts, (found[::3], found[1::3], found[2::3])

    def without(self, shard: str, left_out: Collection[str]) -> "TarTable":
        """Return the table without the samples with these keys; raise a ShardError if the shard lacks one."""
        keys, counts, _ = self.samples(list(range(len(self.ends))))
        if gone := sorted(set(left_out) - set(keys)):
            raise ShardError(f"{shard}: has no sample {gone[0]!r}, which its split leaves out. Write the split again.")
        kept = [key not in left_out for key in keys]
        members = self.members[np.repeat(kept, counts)]
        mine = [key.encode("utf-8", "surrogateescape") for key, keep in zip(keys, kept, strict=True) if keep]
        ends = np.empty((len(mine), 2), dtype=np.int64)
        ends[:, 0] = np.cumsum(np.array(counts, dtype=np.int64)[kept])
        ends[:, 1] = np.cumsum([len(key) for key in mine])
        return TarTable(members, ends, b"".join(mine), self.extensions)

    def pack(self) -> Int64Array:
        """Return the table as one array (W,) int64, its form in index files."""
        names = json.dumps(self.extensions).encode()
        text = names + bytes(self.keys)
        words = np.frombuffer(text + bytes(-len(text) % 8), dtype="<i8").astype(np.int64)
        counts = np.array([len(self.members), len(self.ends), len(names)], dtype=np.int64)
        return np.concatenate([counts, self.members.ravel(), self.ends.ravel(), words])

    @classmethod
    def unpack(cls, words: Int64Array) -> "TarTable":
        """Return the table that `pack` packed. Its arrays are views of `words`.

        Raises:
            ValueError: If the parts' sizes do not match those at the start of `words`.
        """
        members, samples, names = words[:3].tolist()
        if min(members, samples, names) < 0:
            raise ValueError(f"{members} files, {samples} samples, {names} bytes of names")
        text = 3 + 3 * members + 2 * samples
        content = words[text:].astype("<i8", copy=False).view(np.uint8).data
        return cls(
            words[3 : 3 + 3 * members].reshape(-1, 3),
            words[3 + 3 * members : text].reshape(-1, 2),
            content[names:],
            json.loads(bytes(content[:names])),
        )


def index_tar(file: BinaryIO, size_bytes: int, shard: str) -> TarTable:
    """Read an archive's headers and find its samples.

    Raises:
        ShardError: If the file is not a complete, uncompressed tar archive, or a name leads out of it. Also if a sample
            has an extension twice or files that are not consecutive, or if no file belongs to a sample.
    """
    return group_files(read_headers(file, size_bytes, shard), shard)


def group_files(files: Iterable[File], shard: str) -> TarTable:
    """Group files into samples by key: the path up to the file name's first dot. Errors are those of `index_tar`."""
    members: list[int] = []
    keys: dict[bytes, int] = {}  # and the number of files before each
    numbers: dict[bytes, int] = {}
    extensions: dict[str, int] = {}
    current: bytes | None = None
    found: set[int] = set()  # extensions of the current sample
    stray: tuple[bytes, int] | None = None
    for name, offset, size in files:
        base = name.rfind(b"/") + 1
        dot = name.find(b".", base)
        key, extension = name[:dot], name[dot + 1 :]
        if dot <= base or not extension or (name[:2] == b"__" and _METADATA.match(name)):
            _check_name(name, offset, shard)
            stray = stray or (name, offset)
            continue
        number = numbers.get(extension)
        if number is None:
            _check_name(name, offset, shard)
            text = extension.decode(errors="surrogateescape").lower()
            number = numbers[extension] = extensions.setdefault(text, len(extensions))
            if text == "__key__":
                raise _name_error(shard, offset, name, "its extension is the name of the key's own field")
        if key != current:
            _check_name(name, offset, shard)  # only names with a new key or extension need a check
            if key in keys:
                raise _name_error(
                    shard,
                    offset,
                    name,
                    "its key came before, with other keys in between; wanted all files of a key in sequence: tar --sort=name",
                )
            keys[key] = len(members) // 3
            current, found = key, set()
        if number in found:
            raise _name_error(shard, offset, name, "its key has a file with this extension already")
        found.add(number)
        members += (offset, size, number)
    if not keys and stray is not None:
        what = "neither this nor any other file belongs to a sample; wanted names as KEY.EXTENSION"
        raise _name_error(shard, stray[1], stray[0], what)
    ends = np.empty((len(keys), 2), dtype=np.int64)
    ends[:, 0] = [*keys.values(), len(members) // 3][1:]
    ends[:, 1] = np.cumsum([len(key) for key in keys])
    return TarTable(np.array(members, dtype=np.int64).reshape(-1, 3), ends, b"".join(keys), list(extensions))


def _check_name(name: bytes, offset: int, shard: str) -> None:
    if name.startswith(b"/"):
        raise _name_error(shard, offset, name, "an absolute name, wanted a relative one")
    if b".." in name.split(b"/"):
        raise _name_error(shard, offset, name, "a name that leads out of the archive, wanted one without '..'")
    if b"\0" in name or not name:
        raise _name_error(shard, offset, name, "a name that is empty or has a zero byte")


def _name_error(shard: str, offset: int, name: bytes, what: str) -> ShardError:
    return shard_error(shard, offset, f"{name.decode(errors='replace')!r}: {what}")
