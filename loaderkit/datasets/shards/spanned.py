"""Base of shards whose records are spans of bytes. The index holds where each record begins and ends."""

from typing import Any

from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.shards.sharded import ShardedDataset


class SpannedDataset(ShardedDataset):
    """A dataset whose records are spans of bytes.

    The offsets in its indexes are (N, 2): the first byte of each record, and the byte after its last.
    """

    @staticmethod
    def has_offsets(index: ShardIndex) -> bool:
        spans = index.offsets
        if spans is None or spans.shape != (index.count, 2):
            return False
        starts, ends = spans.T
        return not index.count or bool(starts.min() >= 0 and (starts <= ends).all() and ends.max() <= index.size_bytes)

    @staticmethod
    def start_and_key(index: ShardIndex, row: int) -> tuple[int | None, str | None]:
        return None if index.offsets is None else int(index.offsets[row, 0]), None

    def open(self, shard: str, index: ShardIndex) -> Any:
        return LineFile(shard, self.opened.open_soon(shard))
