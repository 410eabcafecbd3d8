"""The samples of one open tar shard, read with few reads and not decoded yet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any, BinaryIO

from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.tar.index import TarTable


@dataclass(frozen=True, slots=True)
class Block:
    """B samples of a shard that have the same K files in the same order.

    Args:
        shard: Name of the shard.
        extensions: (K,), of the files.
        keys: (B,), of the samples.
        offsets: (K, B), of the files in the shard.
        starts: (K, B), of the files in `content`.
        sizes: (K, B), of the files, in bytes.
        content: Bytes that were read.
    """

    shard: str
    extensions: tuple[str, ...]
    keys: list[str]
    offsets: Sequence[Sequence[int]]
    starts: Sequence[Sequence[int]]
    sizes: Sequence[Sequence[int]]
    content: memoryview

    def files(self, number: int) -> list[memoryview]:
        """Return the contents (B,) of file `number` of each sample, as views of `content`."""
        spans = zip(self.starts[number], self.sizes[number], strict=True)
        return [self.content[start : start + size] for start, size in spans]


class OpenTar:
    """An open shard with the table of its samples."""

    def __init__(self, shard: str, file: BinaryIO, table: TarTable) -> None:
        self.shard = shard
        self._file = LineFile(shard, file)
        self._table = table

    def close(self) -> None:
        self._file.close()

    def read(self, rows: list[int]) -> Iterator[Block]:
        """Read samples (B,); one read covers samples that are close together."""
        keys, counts, (offsets, sizes, numbers) = self._table.samples(rows)
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        content, starts = self._file.read_together(offsets, ends)
        spans = list(pairwise([0, *accumulate(counts)]))
        for kinds, group in groupby(range(len(rows)), lambda row: numbers[slice(*spans[row])]):
            same = list(group)
            first, last = spans[same[0]][0], spans[same[-1]][1]
            columns = [slice(first + number, last, len(kinds)) for number in range(len(kinds))]
            yield Block(
                shard=self.shard,
                extensions=tuple(self._table.extensions[kind] for kind in kinds),
                keys=keys[same[0] : same[-1] + 1],
                offsets=[offsets[column] for column in columns],
                starts=[starts[column] for column in columns],
                sizes=[sizes[column] for column in columns],
                content=content,
            )


def find_file(blocks: Sequence[Block], number: int, row: int) -> tuple[str, str, int]:
    """Return the shard, key and offset of file `number` of the sample in `row` of all blocks together."""
    for block in blocks:
        if row < len(block.keys):
            return block.shard, block.keys[row], block.offsets[number][row]
        row -= len(block.keys)
    raise IndexError(f"row {row} after the last block.")


def to_samples(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return columns (B,) as samples."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
