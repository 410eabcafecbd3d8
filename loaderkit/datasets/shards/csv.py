"""CSV files: one sample for each record. A quoted field may contain line feeds."""

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import BinaryIO, ClassVar

import numpy as np

from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.lines import LineFile, scan_lines, skip_bom
from loaderkit.datasets.shards.spanned import SpannedDataset
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import listed

_BLOCK = 1 << 24
_PARSERS = (int, float, complex, bool, str)  # known to draw no random numbers


class CsvDataset(SpannedDataset):
    r"""The records of CSV files (RFC 4180) as dicts of strings.

    Files are in UTF-8.
    Blank lines are skipped. A record whose number of fields differs from the header's
    raises a `ShardError` when it is read.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        columns: The columns to return; by default all columns of the first shard.
        types: Functions that parse a column's strings, such as {"age": int}.
        header: Names of the columns, for files without a header line.
        delimiter: One ASCII character between fields.
        transform: Called with each record.
        index_dir: Folder for index files. None: LOADERKIT_INDEX_DIR, else ~/.cache/loaderkit/index.
        max_open: Files that a process keeps open, with all its threads.
        storage: How to reach remote files, and where to cache them.

    Raises:
        FileNotFoundError: If there are no shards.
        ValueError: If `types` names a column that is not returned.
        ShardError: If a file has no header, lacks a column, or ends within quotes.

    Examples:
        >>> _ = Path("a.csv").write_text("name,age\nAda,36\nAlan,41\n")
        >>> data = lk.CsvDataset("a.csv", types={"age": int})
        >>> data[1]
        {'name': 'Alan', 'age': 41}
        >>> next(iter(lk.Loader(data, batch_size=2)))
        {'name': ['Ada', 'Alan'], 'age': tensor([36, 41])}
        >>> data.close()
    """

    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv")

    def __init__(
        self,
        urls: Urls,
        columns: Sequence[str] | None = None,
        *,
        types: Mapping[str, Callable[[str], object]] | None = None,
        header: Sequence[str] | None = None,
        delimiter: str = ",",
        transform: Transform | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
    ) -> None:
        if len(delimiter) != 1 or not delimiter.isascii():
            raise ValueError(f"CsvDataset: delimiter is {delimiter!r}, wanted one ASCII character.")
        self._delimiter = delimiter
        self._header, given = listed("CsvDataset", "header", header), listed("CsvDataset", "columns", columns)
        # The offsets depend on these settings, so they are part of the index's name.
        self.kind = f"csv-1{'' if delimiter == ',' else f' {delimiter!r}'}{'' if header is None else ' without header'}"
        super().__init__(urls, transform=transform, index_dir=index_dir, max_open=max_open, storage=storage)
        self.columns = self._names(self.shards[0], self.files.open_head) if given is None else given
        self.types = dict(types or {})
        if unknown := sorted(set(self.types) - set(self.columns)):
            raise ValueError(f"CsvDataset: types are given for {unknown}, the columns are {self.columns}.")

    def _parts(self) -> list[object]:
        return [*super()._parts(), *(parser for parser in self.types.values() if parser not in _PARSERS)]

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        quoted = False
        with self.files.open(shard) as file:
            while not quoted and (block := file.read(_BLOCK)):
                quoted = b'"' in block
            file.seek(0)
            spans = self._records(shard, file) if quoted else scan_lines(shard, file, blank=b"\r\n")
        if self._header is None:
            self._names(shard, self.files.open)
            spans = spans[1:]
        return len(spans), spans

    def open(self, shard: str, index: ShardIndex) -> "_Records":
        names = self._names(shard, self.files.open)
        if missing := [name for name in self.columns if name not in names]:
            raise ShardError(f"{shard}: lacks the columns {missing}, has {names}.")
        return _Records(shard, self.files.open(shard), names)

    def read(self, handle: "_Records", rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        starts, ends = index.spans(handle.shard)[rows].T.tolist()
        wanted = [(name, handle.names.index(name), self.types.get(name)) for name in self.columns]
        samples: list[object] = []
        for content, start in zip(handle.read(starts, ends), starts, strict=True):
            try:
                fields = next(csv.reader([content.decode()], delimiter=self._delimiter, strict=True))
            except (csv.Error, ValueError) as error:  # ValueError includes decoding errors
                raise ShardError(f"{handle.place(start)} is not CSV: {error}.") from error
            if len(fields) != len(handle.names):
                raise ShardError(f"{handle.place(start)} has {len(fields)} fields, wanted {len(handle.names)}.")
            samples.append({name: self._typed(fields[i], kind, handle, start, name) for name, i, kind in wanted})
        return samples

    def fingerprint(self) -> str:
        """Return the shards' names and numbers of samples, and the columns."""
        return f"{self.columns} {super().fingerprint()}"

    def _records(self, shard: str, file: BinaryIO) -> Int64Array:
        """Return start and end (N, 2), in bytes, of the records that the csv module finds."""
        at = end = skip_bom(shard, file)

        def lines() -> Iterator[str]:
            nonlocal end
            for line in file:
                end += len(line)
                yield line.decode("latin-1")  # ASCII quotes and delimiters are the same bytes in UTF-8

        spans = []
        try:
            for fields in csv.reader(lines(), delimiter=self._delimiter, strict=True):
                if fields:
                    spans.append((at, end))
                at = end
        except csv.Error as error:
            with closing(LineFile(shard, self.files.open(shard))) as found:
                raise ShardError(f"{found.place(at)} begins a record that is not CSV: {error}.") from error
        return np.array(spans, dtype=np.int64).reshape(-1, 2)

    def _names(self, shard: str, open_shard: Callable[[str], BinaryIO]) -> list[str]:
        if self._header is not None:
            return self._header
        with open_shard(shard) as file:
            skip_bom(shard, file)
            try:
                rows = csv.reader((line.decode() for line in file), delimiter=self._delimiter)
                names = next((row for row in rows if row), None)
            except (csv.Error, UnicodeDecodeError) as error:
                raise ShardError(f"{shard}: its header is not CSV: {error}.") from error
        if not names or len(set(names)) < len(names):
            raise ShardError(
                f"{shard}: has the header {names}, wanted names, each once. For files without a header use header=[...]."
            )
        return names

    def _typed(
        self, text: str, kind: Callable[[str], object] | None, handle: "_Records", start: int, name: str
    ) -> object:
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
