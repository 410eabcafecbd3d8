"""JSON Lines files: one sample for each line."""

import json
from collections.abc import Sequence
from typing import ClassVar

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.lines import LineFile, scan_lines
from loaderkit.datasets.shards.spanned import SpannedDataset
from loaderkit.system.arrays import Int64Array


class JsonlDataset(SpannedDataset):
    r"""Files with one JSON value on each line, in UTF-8 (jsonlines.org).

    Blank lines are skipped, and the last line needs no line feed. A line that is not
    JSON raises a `ShardError` when it is read.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        transform: Called with each line's value.
        index_dir: Folder for index files. None: LOADERKIT_INDEX_DIR, else ~/.cache/loaderkit/index.
        max_open: Files that a process keeps open, with all its threads.
        storage: How to reach remote files, and where to cache them.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a file is compressed, or an index is damaged.

    Examples:
        >>> _ = Path("a.jsonl").write_text('{"text": "one", "id": 1}\n{"text": "two", "id": 2}\n')
        >>> data = lk.JsonlDataset("a.jsonl")
        >>> data[1]
        {'text': 'two', 'id': 2}
        >>> next(iter(lk.Loader(data, batch_size=2)))
        {'text': ['one', 'two'], 'id': tensor([1, 2])}
        >>> data.close()
    """

    kind = "jsonl-1"
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".jsonlines")

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        with self.files.open(shard) as file:
            spans = scan_lines(shard, file)
        return len(spans), spans

    def read(self, handle: LineFile, rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        starts, ends = index.spans(handle.shard)[rows].T.tolist()
        return [_parse(line, handle, start) for line, start in zip(handle.read(starts, ends), starts, strict=True)]


def _parse(line: bytes, handle: LineFile, start: int) -> object:
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError) as error:  # ValueError includes decoding errors
        raise ShardError(f"{handle.place(start)} is not JSON: {error}.") from error
