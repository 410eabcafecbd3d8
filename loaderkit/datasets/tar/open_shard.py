"""The samples of one open tar shard: their bytes, by as few reads as pay, before they are decoded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from operator import add, sub
from typing import Any, BinaryIO

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.lines import GAP, LineFile
from loaderkit.datasets.tar.index import TarTable


@dataclass(frozen=True, slots=True)
class Block:
    """B samples of a shard that have the same K files in the same order.

    Args:
        shard: Its name.
        names: (K,), the files' extensions.
        keys: (B,)
        places: (K, B): where the files lie in the shard.
        starts: (K, B): where they lie in `content`.
        sizes: (K, B)
        content: What was read.
    """

    shard: str
    names: tuple[str, ...]
    keys: list[str]
    places: Sequence[Sequence[int]]
    starts: Sequence[Sequence[int]]
    sizes: Sequence[Sequence[int]]
    content: memoryview

    def files(self, number: int) -> list[memoryview]:
        """Return what is in the files of that number in their samples (B,): views, that keep all of the content."""
        content = self.content
        return [
            content[start : start + size] for start, size in zip(self.starts[number], self.sizes[number], strict=True)
        ]


class OpenTar:
    """A shard's file, and the table of its samples."""

    def __init__(self, shard: str, file: BinaryIO, index: ShardIndex) -> None:
        if index.offsets is None:
            file.close()
            raise ShardError(f"{shard}: its index has no offsets. Delete the index, it is made again.")
        self.shard = shard
        self._file = LineFile(shard, file)
        self._table = TarTable.unpack(index.offsets)
        self._names, self._each = _regular(self._table)
        self._members = self._table.members.reshape(-1).data
        self._ends = self._table.ends.reshape(-1).data

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, rows: list[int]) -> list[Block]:
        """Read samples, those near each other at once.

        Raises:
            ShardError: If the file ends before.
        """
        if not self._each:
            return list(self._read_any(rows))
        # Little code and no numpy: decoding empties the caches, after which whatever is called first takes ten times as long.
        step, members = 3 * self._each, self._members
        found = list(zip(*[members[step * row : step * row + step].tolist() for row in rows], strict=True))
        places, sizes = found[::3], found[1::3]
        first = places[0]
        content, begins = self._file.read_together(first, list(map(add, places[-1], sizes[-1])))
        shifts = list(map(sub, begins, first))
        starts = [begins, *(list(map(add, part, shifts)) for part in places[1:])]
        ends, text = self._ends, self._table.keys
        spans = [(ends[2 * row - 1] if row else 0, ends[2 * row + 1]) for row in rows]
        keys = [str(text[start:end], "utf-8", "surrogateescape") for start, end in spans]
        return [Block(self.shard, self._names, keys, places, starts, sizes, content)]

    def _read_any(self, rows: list[int]) -> Iterator[Block]:
        """Read samples of which each may have other files."""
        keys, counts, (places, sizes, numbers) = self._table.samples(rows)
        content, starts = self._file.read_together(places, list(map(add, places, sizes)))
        spans = list(pairwise([0, *accumulate(counts)]))
        for kinds, group in groupby(range(len(rows)), lambda row: numbers[slice(*spans[row])]):
            mine = list(group)
            first, last = spans[mine[0]][0], spans[mine[-1]][1]
            columns = [slice(first + at, last, len(kinds)) for at in range(len(kinds))]
            yield Block(
                shard=self.shard,
                names=tuple(self._table.extensions[number] for number in kinds),
                keys=keys[mine[0] : mine[-1] + 1],
                places=[places[column] for column in columns],
                starts=[starts[column] for column in columns],
                sizes=[sizes[column] for column in columns],
                content=content,
            )


def _regular(table: TarTable) -> tuple[tuple[str, ...], int]:
    """Return the extensions (K,) and K if each sample has these files in this order, with little between them; else K is 0."""
    samples, files = len(table.ends), len(table.members)
    each = files // max(samples, 1)
    if files != each * samples or not files:
        return (), 0
    members = table.members.reshape(samples, each, 3)
    between = members[:, 1:, 0] - members[:, :-1, 0] - members[:, :-1, 1]
    # No sample has an extension twice, so that this tells the files of each from those of its neighbours.
    if (members[:, :, 2] != members[0, :, 2]).any() or (between > GAP).any():
        return (), 0
    return tuple(table.extensions[number] for number in members[0, :, 2].tolist()), each


def place_of(blocks: Sequence[Block], number: int, row: int) -> tuple[str, str, int]:
    """Return the shard, key and place of a file: of that number in its sample, of the sample in that row of all blocks."""
    for block in blocks:
        if row < len(block.keys):
            return block.shard, block.keys[row], block.places[number][row]
        row -= len(block.keys)
    raise IndexError(f"row {row} behind the last block.")


def to_samples(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return columns (B,) as samples."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
