"""Read samples of an open tar shard with few reads, without decoding them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import BinaryIO

from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.tar.index import TarTable


@dataclass(frozen=True, slots=True)
class Block:
    """B samples of a shard that have the same K files in the same order.

    Args:
        shard: Name of the shard.
        extensions: The files' extensions (K,).
        keys: The samples' keys (B,).
        offsets: Offsets of the files in the shard (K, B).
        starts: Offsets of the files in `content` (K, B).
        sizes: Sizes of the files in bytes (K, B).
        content: The bytes that were read.
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
        """Yield the samples in these rows (B,) as blocks. Samples that are close together are read at once."""
        keys, counts, (offsets, sizes, numbers) = self._table.samples(rows)
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        content, starts = self._file.read_together(offsets, ends)
        names = self._table.extensions
        yield from to_blocks(Files(self.shard, keys, counts, offsets, starts, sizes, numbers, names), content)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of samples (B,) that were read.

    Args:
        shard: Name of the shard.
        keys: The samples' keys (B,).
        counts: Number of files in each sample (B,).
        offsets: Offsets of the files in the shard (F,).
        starts: Offsets of the files in the buffer that was read (F,).
        sizes: Sizes of the files in bytes (F,).
        kinds: Each file's index in `extensions` (F,).
        extensions: The distinct extensions.
    """

    shard: str
    keys: list[str]
    counts: list[int]
    offsets: list[int]
    starts: list[int]
    sizes: list[int]
    kinds: list[int]
    extensions: Collection[str]


def to_blocks(files: Files, content: memoryview) -> Iterator[Block]:
    """Yield blocks: each has consecutive samples with the same extensions."""
    names, spans = list(files.extensions), list(pairwise([0, *accumulate(files.counts)]))
    numbers = files.kinds
    for kinds, group in groupby(range(len(spans)), lambda row: numbers[slice(*spans[row])]):
        same = list(group)
        first, last = spans[same[0]][0], spans[same[-1]][1]
        columns = [slice(first + number, last, len(kinds)) for number in range(len(kinds))]
        yield Block(
            shard=files.shard,
            extensions=tuple(names[kind] for kind in kinds),
            keys=files.keys[same[0] : same[-1] + 1],
            offsets=[files.offsets[column] for column in columns],
            starts=[files.starts[column] for column in columns],
            sizes=[files.sizes[column] for column in columns],
            content=content,
        )


def find_file(blocks: Sequence[Block], number: int, row: int) -> tuple[str, str, int]:
    """Return the shard, key and offset of a sample's file `number`. `row` counts samples over all blocks."""
    for block in blocks:
        if row < len(block.keys):
            return block.shard, block.keys[row], block.offsets[number][row]
        row -= len(block.keys)
    raise IndexError(f"row {row} after the last block.")


def to_samples(columns: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Turn columns (B,) by name into a list of B samples."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
