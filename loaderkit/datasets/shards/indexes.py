"""Which row of which shard each sample is, and where the row is in its shard."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.system.arrays import Int64Array


class ShardIndexes:
    """The indexes of a dataset's shards. Their samples are numbered shard by shard.

    Args:
        shards: The shards' names.
        indexes: Their indexes. Offsets that are in the index of a folder are read when they are first needed.
        has_offsets: Returns whether an index's offsets are valid for the format.
    """

    def __init__(
        self, shards: Sequence[str], indexes: Sequence[ShardIndex], has_offsets: Callable[[ShardIndex], bool]
    ) -> None:
        self._shards, self._indexes, self._has_offsets = shards, list(indexes), has_offsets
        self.ends = np.cumsum(self.counts, dtype=np.int64)  # the index after the last sample of each shard, (S,)
        self.size = int(self.ends[-1])  # samples of all shards
        self._starts = self.ends - self.counts

    @property
    def counts(self) -> Int64Array:
        """Number of samples in each shard, (S,)."""
        return np.array([index.count for index in self._indexes], dtype=np.int64)

    def load(self, part: int) -> ShardIndex:
        """Return the index of shard number `part` with its offsets; raise a ShardError if they are damaged."""
        index = self._indexes[part]
        if index.later is not None:
            index = index.loaded()
            if not self._has_offsets(index):
                raise ShardError(f"{self._shards[part]}: the index of its folder is damaged. Write it again.")
            self._indexes[part] = index
        return index

    def parts_of(self, indices: Int64Array) -> Int64Array:
        """Return the number of the shard that holds each index, (B,)."""
        return np.searchsorted(self.ends, indices, side="right")

    def by_shard(self, indices: Int64Array) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Group indices (B,) by shard. For each, yield its number, positions in `indices` (R,), and rows in it (R,)."""
        if not indices.size:
            return
        if len(self._indexes) == 1:
            yield 0, np.arange(len(indices)), indices
            return
        part = int(np.searchsorted(self.ends, indices[0], side="right"))
        rows = indices - self._starts[part]
        # One shard, as in most batches of a ShardOrder. As unsigned, a negative row is large.
        if rows.view(np.uint64).max() < self._indexes[part].count:
            yield part, np.arange(len(rows)), rows
        else:
            for each, places in group_places(self.parts_of(indices)):
                yield each, places, indices[places] - self._starts[each]


def group_places(numbers: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """Yield each distinct number in `numbers` (B,), in ascending order, with its positions in ascending order."""
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=False)
