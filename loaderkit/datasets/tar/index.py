"""Which files of a tar shard make up which sample, in a few flat arrays."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.tar.group import Grouper
from loaderkit.datasets.tar.headers import File, Files
from loaderkit.system.arrays import Int64Array

_SLASH = ord("/")
_MANY = 8192  # files that are grouped at once
_METADATA = re.compile(rb"__[^/]*__(/|$)")  # webdataset's rule


@dataclass(frozen=True, slots=True)
class TarTable:
    """The samples of a shard.

    Args:
        members: (M, 3): offset, size, number of the extension.
        ends: (N, 2): where sample i ends in the members and in the keys.
        keys: All keys, end to end.
        extensions: Those that occur.
    """

    members: Int64Array
    ends: Int64Array
    keys: Any  # bytes-like
    extensions: list[str]

    def sample(self, row: int) -> tuple[str, list[tuple[str, int, int]]]:
        """Return a sample's key, and the extension, offset and size of each of its files."""
        (key,), _, (offsets, sizes, numbers) = self.samples([row])
        return key, list(zip(map(self.extensions.__getitem__, numbers), offsets, sizes, strict=True))

    def samples(self, rows: list[int]) -> tuple[list[str], list[int], tuple[list[int], list[int], list[int]]]:
        """Return the samples' keys (B,), how many files each has, and all these files' offsets, sizes and extensions."""
        # Without numpy, as in LineFile.read.
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

    def pack(self) -> Int64Array:
        """Return all of it as 64-bit words (W,), as an index file keeps them."""
        names = json.dumps(self.extensions).encode()
        text = names + bytes(self.keys)
        words = np.frombuffer(text + bytes(-len(text) % 8), dtype="<i8").astype(np.int64)
        counts = np.array([len(self.members), len(self.ends), len(names)], dtype=np.int64)
        return np.concatenate([counts, self.members.ravel(), self.ends.ravel(), words])

    @classmethod
    def unpack(cls, words: Int64Array) -> "TarTable":
        """Undo `pack`, without copies."""
        members, samples, names = words[:3].tolist()
        text = 3 + 3 * members + 2 * samples
        content = words[text:].astype("<i8", copy=False).view(np.uint8).data
        return cls(
            words[3 : 3 + 3 * members].reshape(-1, 3),
            words[3 + 3 * members : text].reshape(-1, 2),
            content[names:],
            json.loads(bytes(content[:names])),
        )


def group(chunks: Iterable[list[File] | Files], shard: str) -> TarTable:
    """Group an archive's files to samples: the name up to the base name's first dot is the key.

    Files without an extension, hidden ones, and metadata (`__name__` at the start of the
    path, as webdataset has it) belong to no sample.

    Raises:
        ShardError: If a name leads out of the archive, an extension comes
            twice in a sample, a key's files are not in sequence, or no file makes a sample.
    """
    rest, taken, grouper = iter(chunks), [], Grouper()
    waiting: list[Files] = []
    try:
        for chunk in rest:
            taken.append(chunk)
            files = chunk if isinstance(chunk, Files) else Files.of(chunk)
            if files is None:
                break
            waiting.append(files)
            if sum(map(len, waiting)) >= _MANY:
                if not grouper.add(Files.join(waiting)):
                    break
                waiting = []
        else:
            if grouper.add(Files.join(waiting)) and (found := grouper.finish()) is not None:
                return TarTable(*found, list(grouper.extensions))
    except ShardError as error:
        rest = _raising(error)  # unless something before it is wrong too
    return _group_one_by_one(itertools.chain(taken, rest), shard)


def _raising(error: ShardError) -> Iterator[Files]:
    yield from ()
    raise error


def _group_one_by_one(chunks: Iterable[list[File] | Files], shard: str) -> TarTable:
    members: list[int] = []
    ends: list[tuple[int, int]] = []
    keys: list[bytes] = []
    seen: set[bytes] = set()
    numbers: dict[bytes, int] = {}
    extensions: dict[str, int] = {}
    current: bytes | None = None
    mine: set[int] = set()
    length = 0
    stray: tuple[bytes, int] | None = None
    for name, offset, size in (file for chunk in chunks for file in chunk):
        if b".." in name or b"\0" in name or not name or name[0] == _SLASH:
            _check_name(name, offset, shard)
        base = name.rfind(b"/") + 1
        dot = name.find(b".", base)
        key, extension = name[:dot], name[dot + 1 :]
        if dot <= base or not extension or (name[:2] == b"__" and _METADATA.match(name)):
            stray = stray or (name, offset)
            continue
        number = numbers.get(extension)
        if number is None:
            text = extension.decode(errors="surrogateescape").lower()
            number = numbers[extension] = extensions.setdefault(text, len(extensions))
            if text == "__key__":
                raise _error(shard, offset, name, "its extension is the name of the key's own field")
        if key != current:
            if key in seen:
                raise _error(
                    shard, offset, name, "its key came before, with others between; wanted a sample's files in sequence: "
                    "tar --sort=name"
                )  # fmt: skip
            if current is not None:
                ends.append((len(members) // 3, length))
            seen.add(key)
            keys.append(key)
            length += len(key)
            current, mine = key, set()
        if number in mine:
            raise _error(shard, offset, name, "its key has a file with this extension already")
        mine.add(number)
        members += (offset, size, number)
    if current is not None:
        ends.append((len(members) // 3, length))
    elif stray is not None:
        raise _error(
            shard, stray[1], stray[0], "neither this nor any other file makes a sample; wanted names as KEY.EXTENSION"
        )
    return TarTable(
        np.array(members, dtype=np.int64).reshape(-1, 3),
        np.array(ends, dtype=np.int64).reshape(-1, 2),
        b"".join(keys),
        list(extensions),
    )


def _check_name(name: bytes, offset: int, shard: str) -> None:
    if name.startswith(b"/"):
        raise _error(shard, offset, name, "an absolute name; make the archive of relative ones")
    if b".." in name and b".." in name.split(b"/"):
        raise _error(shard, offset, name, "a name that leads out of the archive; wanted one without '..'")
    if b"\0" in name or not name:
        raise _error(shard, offset, name, "a name that is empty or has a zero byte")


def _error(shard: str, offset: int, name: bytes, what: str) -> ShardError:
    return ShardError(f"{shard}, offset {offset:,}: {name.decode(errors='replace')!r}: {what}.")
