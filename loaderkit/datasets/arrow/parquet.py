"""Tables on disk: Parquet, Arrow IPC and Feather, read one row group at a time."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar

import numpy as np

from loaderkit.datasets.arrow.columns import Column, layout_of, make_batch
from loaderkit.datasets.arrow.hive import hive_constants
from loaderkit.datasets.arrow.rowgroups import Decryption, GroupedTable, Groups
from loaderkit.datasets.arrow.schemas import check_schema
from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.index_finder import IndexFinder
from loaderkit.datasets.shards.indexes import group_places
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer, listed
from loaderkit.system.digests import digest
from loaderkit.system.per_thread import PerThread


class ParquetDataset(ShardedDataset[GroupedTable]):
    """The rows of Parquet, Arrow IPC (file and stream) and Feather files as dicts.

    Rows and batches have the dtype and shape of each column. A number is a numpy scalar if Python has no such number
    (float32, int8). A list of numbers is an array, which is a copy, and so is a fixed shape tensor
    (`arrow.fixed_shape_tensor`). Lists of lists of numbers are an array if the inner lists have one length, else a list
    of arrays. A value of a VARIANT column is decoded. Other values are those of pyarrow's `to_pylist`.

    A null is None, and a list with a null inside stays a list. A null among numbers or arrays in a default batch raises
    an error that names the column, as a tensor cannot hold a null.

    All files must have the same columns, with types whose values can be in one batch, such as integers of any width, or
    floats of any width. Types are compared when files are indexed, and again when a file is opened. Folders named
    `key=value` directly above a file add a column `key` with the text `value`, unless the file has that column.

    Each thread keeps the last `cached_groups` decoded row groups. Shuffle with `lk.ShardOrder`, and write row groups so
    small that many fit into memory. Default batches are gathered column by column if all types allow it: numbers, text,
    bytes, arrays of one shape. That is many times faster than gathering rows.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        columns: Columns to read; by default all columns of the first shard.
        transform: Called with each row; its result replaces the row.
        ragged: Whether a default batch holds lists of numbers as one `Ragged`. Otherwise the lists must have equal
            lengths, and are stacked.
        index_dir: Folder of the index files. None: LOADERKIT_INDEX_DIR, else `~/.cache/loaderkit/index`.
        max_open: Files that a process keeps open, with all its threads.
        storage: How to reach remote files, and where to keep copies.
        cached_groups: Number of decoded row groups that each reading thread keeps, for all files together. A ShardOrder
            reads from lanes x (1 + window / rows in a group) of them.
        split: The split to read from a folder that `DatasetDict.save_to_disk` wrote.
        decryption: For encrypted Parquet: a function that returns pyarrow's `FileDecryptionProperties`. It is called
            for each file that is opened, and pickled to workers that are not forked.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a file is truncated or damaged, or its columns differ from those of the first file. Also if the folder is a
            Delta or Iceberg table, or has several splits.

    Examples:
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"x": [[0.5, 1.5], [2.5, 3.5]], "label": [0, 1]}), "a.parquet")
        >>> dataset = lk.ParquetDataset("a.parquet")
        >>> dataset[1]
        {'x': array([2.5, 3.5]), 'label': 1}
        >>> next(iter(lk.Loader(dataset, batch_size=2)))["x"].shape
        torch.Size([2, 2])
    """

    kind = "parquet-1"
    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".pq", ".arrow", ".feather", ".ipc")

    def __init__(
        self,
        urls: Urls,
        columns: Sequence[str] | None = None,
        *,
        transform: Transform | None = None,
        ragged: bool = False,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
        cached_groups: int = 64,
        split: str | None = None,
        decryption: Decryption | None = None,
    ) -> None:
        check_integer("ParquetDataset", "cached_groups", cached_groups, 1)
        self._decryption = decryption
        self._given = listed("ParquetDataset", "columns", columns)
        super().__init__(
            urls, transform=transform, index_dir=index_dir, max_open=max_open, storage=storage, split=split
        )
        self._groups = PerThread(Groups, cached_groups)
        kinds = {layout.kind if layout else "" for layout in self._layouts.values()}
        if "" in kinds or ("lists" in kinds and not ragged):
            self.read_batch = None  # type: ignore[assignment, method-assign]  # the Loader then reads and collates rows

    def constants(self, shard: str) -> Mapping[str, object]:
        """Return columns that have one value in all rows of a file, as Arrow scalars.

        A column in the file itself takes precedence.
        """
        return hive_constants(shard)

    def find_indexes(self, finder: IndexFinder) -> list[ShardIndex]:
        """Read the columns that all files must have from the first file, and index the files."""
        with closing(self._table(self.shards[0], Groups(1), head=True)) as first:
            if self._given is not None:
                first.choose(self._given)
            self.columns, self._schema = first.columns, first.schema
            self._added = [name for name in self.columns if name in first.constants]
        self._layouts = {name: layout_of(self._schema.field(name).type) for name in self.columns}
        return super().find_indexes(finder)

    def _table(self, shard: str, groups: Groups, *, head: bool = False) -> GroupedTable:
        file = self.files.open_head(shard) if head else self.files.open(shard)
        return GroupedTable(shard, file, groups, self.constants(shard), self._decryption)

    def _check(self, table: GroupedTable) -> None:
        check_schema(table.shard, table.schema, self.shards[0], self._schema, self._given)

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        with closing(self._table(shard, Groups(1), head=True)) as table:
            sizes = table.group_sizes()
            if sum(sizes):
                self._check(table)
        return sum(sizes), np.cumsum(sizes, dtype=np.int64)

    @staticmethod
    def has_offsets(index: ShardIndex) -> bool:
        ends = index.offsets
        if ends is None or ends.ndim != 1:
            return False
        return bool((np.diff(ends, prepend=0) >= 0).all()) and index.count == (ends[-1] if len(ends) else 0)

    def open(self, shard: str, index: ShardIndex) -> GroupedTable:
        table = self._table(shard, self._groups.own)
        try:
            if index.offsets is None or np.cumsum(table.group_sizes()).tolist() != index.offsets.tolist():
                raise ShardError(f"{shard}: its row groups changed while it was in use. Create the dataset again.")
            self._check(table)  # the index may have been written without this check
            table.choose(self.columns)
        except BaseException:
            table.close()
            raise
        return table

    def read(self, handle: GroupedTable, rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        samples: list[object] = [None] * len(rows)
        for group, places, inside in _by_group(rows, index):
            for place, sample in zip(places.tolist(), handle.read(group, inside), strict=True):
                samples[place] = sample
        return samples

    def read_batch(self, indices: Int64Array) -> dict[str, Any]:
        """Return a batch (B,) of each column: a tensor (B, *), a list of texts or bytes, or a Ragged.

        Raises:
            ShardError: If a shard is damaged.
            ValueError: If shards have types that can't be in one batch, a row is null in a column of numbers or lists,
                or texts or bytes are null in some rows of the batch only.
        """
        parts: list[tuple[dict[str, Column], Int64Array, Int64Array]] = []
        for part, places, rows in self.to_read(indices):
            handle = self.handle(part)
            for group, inner, inside in _by_group(rows, self.indexes.load(part)):
                parts.append((handle.columns_of(group), places[inner], inside))
        return {
            name: make_batch(
                name, layout, [(columns[name], places, rows) for columns, places, rows in parts], len(indices)
            )
            for name, layout in self._layouts.items()
            if layout is not None
        }

    def fingerprint(self) -> str:
        """Return a string that identifies the data: shard names, sizes, columns, and values that come from folder names."""
        found = f"{self.columns} {super().fingerprint()}"
        if not self._added:
            return found
        values = [[str(self.constants(shard).get(name)) for name in self._added] for shard in self.shards]
        return f"{found} {self._added} {digest(repr(values).encode())}"


def _by_group(rows: Int64Array, index: ShardIndex) -> Iterator[tuple[int, Int64Array, Int64Array]]:
    """Split a shard's rows (B,) by row group.

    Yield each group's number, the positions of its rows in `rows` (P,), and their numbers in the group (P,).
    """
    ends = np.empty(0, dtype=np.int64) if index.offsets is None else index.offsets
    for group, places in group_places(np.searchsorted(ends, rows, side="right")):
        yield group, places, rows[places] - (int(ends[group - 1]) if group else 0)
