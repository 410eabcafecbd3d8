"""ArrayRecord files: bytes by number, read by the format's own library."""

import contextlib
import os
from typing import Any, BinaryIO, ClassVar

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.mapped import open_to_map
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.files.foreign_formats import HEAD, format_of_head
from loaderkit.files.urls import is_remote
from loaderkit.system.arrays import Int64Array

_ERRORS = (RuntimeError, ValueError, OSError, IndexError)
_UNKNOWN = "the library gives no reason"
# Options for random access: the library reads nothing ahead and starts no threads.
_OPTIONS: dict[str, object] = {
    "options": "readahead_buffer_size:0,max_parallelism:0",
    "file_reader_buffer_size": 1 << 15,
}


class ArrayRecordDataset(ShardedDataset):
    """The records of ArrayRecord files: bytes, which a `transform` decodes.

    The records of a batch are read by one sorted request for each file. In files with a `group_size` above 1, each
    request decodes the whole group of a record. The library's readers do not survive a fork, so a Loader starts its
    workers by "spawn".

    Args:
        urls: A path, folder, glob or URL, or a list of them. Remote files need a cache.
        transform: Called with each record; its result replaces the record.
        index_dir: Folder of the index files, which hold each file's number of records. None: LOADERKIT_INDEX_DIR, else
            ~/.cache/loaderkit/index.
        max_open: Files that a process keeps open, with all its threads.
        storage: How to reach remote files, and where to keep copies.

    Raises:
        FileNotFoundError: If there are no files.
        ShardError: If a file is damaged, cut, or was never closed by its writer.
        ImportError: If array_record is not installed.

    Examples:
        >>> dataset = lk.ArrayRecordDataset("train-*.array_record", transform=json.loads)  # doctest: +SKIP
        >>> dataset[0]  # doctest: +SKIP
        {'id': 1}
    """

    kind = "arrayrecord-1"
    suffixes: ClassVar[tuple[str, ...]] = (".array_record", ".arrayrecord", ".arecord")
    maps: ClassVar[bool] = True  # the library reads only local files
    survives_fork: ClassVar[bool] = False

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        if is_remote(shard):
            open_to_map(self, shard).close()  # refuses a file that will have no copy
        with contextlib.closing(_Records(shard, self.files.open(shard))) as records:
            return records.count, None

    def open(self, shard: str, index: ShardIndex) -> "_Records":
        return _Records(shard, self.files.open(shard))

    def read(self, handle: "_Records", rows: Int64Array, index: ShardIndex) -> list[bytes]:
        once, places = np.unique(rows, return_inverse=True)
        found = handle.read(once.tolist())
        return [found[place] for place in places.tolist()]


class _Records:
    """An open ArrayRecord file. A remote file's local copy stays open here, because the cache may delete its path."""

    def __init__(self, shard: str, file: BinaryIO) -> None:
        self._shard, self._file = shard, file
        self._reader: Any = None
        try:
            head = file.read(HEAD)
            size = file.seek(0, os.SEEK_END)
            if format_of_head(head, size) != "arrayrecord":
                unclosed = " Its writer was not closed." * (not size)
                raise ShardError(f"{shard}: starts with {head[:8]!r}, wanted an ArrayRecord file.{unclosed}")
            self._reader = self._open()
            self.count = int(self._reader.num_records())
        except BaseException:
            self.close()
            raise

    def read(self, rows: list[int]) -> list[bytes]:
        """Return the records at increasing rows (B,)."""
        found: list[bytes] = []
        error: Exception | None = None
        try:
            found = self._reader.read(rows)
        except _ERRORS as raised:
            error = raised
        if error is None and self._reader.ok():  # after a failure, a reader returns empty records
            return found
        with contextlib.suppress(*_ERRORS):
            self._reader.close()
        self._reader = self._open()
        raise ShardError(
            f"{self._shard}: records {rows[0]:,} to {rows[-1]:,} can't be read: {error or _UNKNOWN}"
        ) from error

    def close(self) -> None:
        with self._file, contextlib.suppress(*_ERRORS):  # a reader that failed raises its error again
            if self._reader is not None:
                self._reader.close()

    def _open(self) -> object:
        try:
            from array_record.python.array_record_module import ArrayRecordReader
        except ImportError as missing:
            raise ImportError(
                f"{self._shard!r} needs array_record: pip install '.[arrayrecord]' in a checkout of loaderkit."
            ) from missing
        place = f"/dev/fd/{self._file.fileno()}" if is_remote(self._shard) else self._shard
        error: Exception | None = None
        try:
            reader = ArrayRecordReader(place, **_OPTIONS)
            if reader.ok():
                return reader
            reader.read([0])  # its error has a text
        except _ERRORS as raised:
            error = raised
        raise ShardError(f"{self._shard}: not a whole ArrayRecord file: {error or _UNKNOWN}") from error
