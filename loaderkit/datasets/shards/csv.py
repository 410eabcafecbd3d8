"""CSV files: one sample a record, which may have line feeds in quotes."""

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, BinaryIO, ClassVar

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.remote.storage import Storage
from loaderkit.datasets.remote.urls import Urls
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.lines import BOM, LineFile, check_text, scan_lines
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.seeding.draws import Draws, draws
from loaderkit.system.arrays import Int64Array

_BLOCK = 1 << 24
_PARSERS = (int, float, complex, bool, str)  # which surely draw no random numbers


class CsvDataset(ShardedDataset):
    """The records of CSV files (RFC 4180, as Python's csv module reads it, strictly), UTF-8, as dicts of strings.

    Blank lines are skipped. A record with another number of fields than the
    header is an error when it is read.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        columns: Which to return; all of the first shard's by default.
        types: What to make of a column's strings, such as {"age": int}.
        header: The columns' names, for files without a header line.
        delimiter: Between fields, one ASCII character.
        transform: From a record to a sample; its random numbers are the sample's own.
        index_dir: Where index files lie; None means beside local shards, and
            in ~/.cache/loaderkit/index for remote ones.
        max_open: Files kept open by each thread that reads.
        storage: How remote files are reached, and where copies of them are kept.

    Raises:
        FileNotFoundError: If there are no shards.
        ValueError: If types are given for columns that are not returned.
        ShardError: If a file has no header, lacks a column, or ends within quotes.
    """

    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv")

    def __init__(
        self,
        urls: Urls,
        columns: Sequence[str] | None = None,
        *,
        types: Mapping[str, Callable[[str], Any]] | None = None,
        header: Sequence[str] | None = None,
        delimiter: str = ",",
        transform: Callable[[Any], Any] | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 128,
        storage: Storage | None = None,
    ) -> None:
        if len(delimiter) != 1 or not delimiter.isascii() or isinstance(columns, str):
            raise ValueError(
                f"CsvDataset: delimiter is {delimiter!r}, columns {columns!r}; wanted one ASCII character, and a list."
            )
        self._delimiter = delimiter
        self._header = None if header is None else list(header)
        # What the offsets depend on is part of what the index is.
        self.kind = f"csv-1{'' if delimiter == ',' else f' {delimiter!r}'}{'' if header is None else ' without header'}"
        super().__init__(urls, transform=transform, index_dir=index_dir, max_open=max_open, storage=storage)
        self.columns = self._names(self.shards[0]) if columns is None else list(columns)
        self.types = dict(types or {})
        if unknown := sorted(set(self.types) - set(self.columns)):
            raise ValueError(f"CsvDataset: types are given for {unknown}, the columns are {self.columns}.")

    def _draws(self) -> Draws:
        others = (draws(parser) for parser in self.types.values() if parser not in _PARSERS)
        return max([super()._draws(), *others])

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        quoted = False
        with self.open_file(shard) as file:
            while not quoted and (block := file.read(_BLOCK)):
                quoted = b'"' in block
            file.seek(0)
            spans = self._records(shard, file) if quoted else scan_lines(shard, file, blank=b"\r\n")
        if self._header is None:
            self._names(shard)
            spans = spans[1:]
        return len(spans), spans

    def open(self, shard: str, index: ShardIndex) -> "_Records":
        self.refuse_change(shard, index)
        names = self._names(shard)
        if missing := [name for name in self.columns if name not in names]:
            raise ShardError(f"{shard}: lacks the columns {missing}, has {names}.")
        return _Records(shard, self.open_file(shard), names)

    def read(self, handle: "_Records", rows: Int64Array, index: ShardIndex) -> list[Any]:
        if index.offsets is None:
            raise ShardError(f"{handle.shard}: its index has no offsets. Delete the index.")
        starts, ends = index.offsets[rows].T.tolist()
        wanted = [(name, handle.names.index(name), self.types.get(name)) for name in self.columns]
        samples: list[Any] = []
        for content, start in zip(handle.read(starts, ends), starts, strict=True):
            try:
                fields = self._fields(content)
            except (csv.Error, ValueError) as error:  # also of the decoding
                raise ShardError(f"{handle.place(start)} is not CSV: {error}.") from error
            if len(fields) != len(handle.names):
                raise ShardError(f"{handle.place(start)} has {len(fields)} fields, wanted {len(handle.names)}.")
            samples.append({name: self._typed(fields[i], kind, handle, start, name) for name, i, kind in wanted})
        return samples

    def fingerprint(self) -> str:
        """Name the shards, their sizes and the columns."""
        return f"{self.columns} {super().fingerprint()}"

    def _records(self, shard: str, file: BinaryIO) -> Int64Array:
        """Find records as the csv module does: let it read lines, and note how far it read."""
        start = file.read(len(BOM))
        check_text(shard, start)
        at = end = len(BOM) if start == BOM else 0
        file.seek(at)

        def lines() -> Iterator[str]:
            nonlocal end
            for line in file:
                end += len(line)
                yield line.decode("latin-1")  # where quotes and delimiters are what they are in UTF-8

        spans = []
        try:
            for fields in csv.reader(lines(), delimiter=self._delimiter, strict=True):
                if fields:
                    spans.append((at, end))
                at = end
        except csv.Error as error:
            with closing(LineFile(shard, self.open_file(shard))) as found:
                raise ShardError(f"{found.place(at)} begins a record that is not CSV: {error}.") from error
        return np.array(spans, dtype=np.int64).reshape(-1, 2)

    def _names(self, shard: str) -> list[str]:
        if self._header is not None:
            return self._header
        with self.open_file(shard) as file:
            start = file.read(len(BOM))
            check_text(shard, start)
            file.seek(len(BOM) if start == BOM else 0)
            try:
                rows = csv.reader((line.decode() for line in file), delimiter=self._delimiter)
                names = next((row for row in rows if row), None)
            except (csv.Error, UnicodeDecodeError) as error:
                raise ShardError(f"{shard}: its header is not CSV: {error}.") from error
        if not names or len(set(names)) < len(names):
            raise ShardError(
                f"{shard}: has the header {names}, wanted names, each once. For files without one: header=[...]."
            )
        return names

    def _fields(self, content: bytes) -> list[str]:
        return next(csv.reader([content.decode()], delimiter=self._delimiter, strict=True))

    def _typed(self, text: str, kind: Callable[[str], Any] | None, handle: "_Records", start: int, name: str) -> Any:
        if kind is None:
            return text
        try:
            return kind(text)
        except (ValueError, TypeError) as error:
            raise ShardError(f"{handle.place(start)}: column {name!r} has {text!r}: {error}.") from error


class _Records(LineFile):
    def __init__(self, shard: str, file: BinaryIO, names: list[str]) -> None:
        super().__init__(shard, file)
        self.names = names
