"""JSON lines: one sample a line."""

import json
from typing import Any, ClassVar

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.lines import LineFile, scan_lines
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.system.arrays import Int64Array


class JsonlDataset(ShardedDataset):
    """A dataset over files with a JSON value on each line, UTF-8 (jsonlines.org).

    Blank lines are skipped; the last line needs no line feed. A line that is
    no JSON is an error when it is read: `ShardError` with the shard, the line
    and its first byte.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        transform: From a line's value to a sample; its random numbers are the sample's own.
        index_dir: Where index files lie; None means beside local shards, and
            in ~/.cache/loaderkit/index for remote ones.
        max_open: Files kept open by each thread that reads.
        storage: How remote files are reached, and where copies of them are kept.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a file is compressed, or an index is damaged.
    """

    kind = "jsonl-1"
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".jsonlines")

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        with self.open_file(shard) as file:
            spans = scan_lines(shard, file)
        return len(spans), spans

    def open(self, shard: str, index: ShardIndex) -> LineFile:
        self.refuse_change(shard, index)
        return LineFile(shard, self.open_file(shard))

    def read(self, handle: LineFile, rows: Int64Array, index: ShardIndex) -> list[Any]:
        if index.offsets is None:
            raise ShardError(f"{handle.shard}: its index has no offsets. Delete the index.")
        starts, ends = index.offsets[rows].T.tolist()
        return [_parse(line, handle, start) for line, start in zip(handle.read(starts, ends), starts, strict=True)]


def _parse(line: bytes, handle: LineFile, start: int) -> Any:
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError) as error:  # also of the decoding
        raise ShardError(f"{handle.place(start)} is not JSON: {error}.") from error
