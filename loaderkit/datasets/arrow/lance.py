"""Lance datasets: the rows of one version, read by row number."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from loaderkit.datasets.arrow.columns import Column, layout_of, make_batch
from loaderkit.datasets.base import Transform, check_index, check_indices
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.handles import Handle
from loaderkit.datasets.places import Place
from loaderkit.seeding.draws import Declares
from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.arrays import Int64Array
from loaderkit.system.arrow_values import to_samples
from loaderkit.system.checks import listed
from loaderkit.system.digests import digest

if TYPE_CHECKING:
    import lance
    import pyarrow as pa


class LanceDataset(Declares):
    """The rows of one version of a Lance dataset, as `ParquetDataset` gives rows.

    An update or a delete changes the numbers of later rows, so row 3 of another version may be another row. The version
    is part of the fingerprint, so a run cannot resume on another version. A value of a blob column is its bytes.

    With `shuffle=True` a Loader's shards are the fragments. The rows of a batch are read in one sorted request. Lance
    does not work in a forked process, so a Loader starts its workers by "spawn".

    Args:
        uri: Path or URL of the dataset.
        version: Version to read; by default the newest when the dataset is created. To resume after the data has
            changed, give the `dataset.version` of the first run, which `cleanup_old_versions` must not have removed.
        columns: Columns to read; by default all.
        transform: Called with each row; its result replaces the row.
        storage_options: How Lance reaches an object store, such as `{"aws_region": ...}`.

    Attributes:
        version: The version that is read.

    Raises:
        ShardError: If there is no such dataset, version or column, or it has no rows.
        ImportError: If pylance is not installed.

    Examples:
        >>> dataset = lk.LanceDataset("photos.lance", version=7)  # doctest: +SKIP
        >>> dataset[0]  # doctest: +SKIP
        {'id': 1, 'jpeg': b'...'}
    """

    survives_fork: ClassVar[bool] = False

    def __init__(
        self,
        uri: str | os.PathLike[str],
        version: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        transform: Transform | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.uri, self.transform = os.fspath(uri), transform
        options = dict(storage_options or {}) or None
        data = _open(self.uri, version, options)
        self.version = int(data.version)
        self._fragments = np.array([fragment.count_rows() for fragment in data.get_fragments()], dtype=np.int64)
        if not self._fragments.sum():
            raise ShardError(f"{self.uri}: version {self.version} of the Lance dataset has no rows, wanted some.")
        self.columns: list[str] = listed("LanceDataset", "columns", data.schema.names if columns is None else columns)
        if not set(self.columns) <= set(data.schema.names):
            raise ShardError(f"{self.uri}: has the columns {data.schema.names}, wanted {self.columns}.")
        fields = [data.schema.field(name) for name in self.columns]
        self._blobs = [field.name for field in fields if _is_blob(field)]
        self._layouts = {field.name: layout_of(field.type) for field in fields if field.name not in self._blobs}
        if self._blobs or any(one is None or one.kind == "lists" for one in self._layouts.values()):
            self.read_batch = None  # type: ignore[assignment, method-assign]  # the Loader then reads and collates rows
        self._handle = Handle(_open, self.uri, self.version, options)

    def __len__(self) -> int:
        return int(self._fragments.sum())

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        row = self._read(np.array([index % len(self)]))[0]
        return row if self.transform is None else self.transform(row)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        rows = self._read(check_indices(self, indices))
        return rows if self.transform is None else per_sample(self.transform, rows)

    def read_batch(self, indices: Int64Array) -> dict[str, Any]:
        """Return a batch (B,) of each column: a tensor (B, *), or a list of texts or bytes.

        Raises:
            ShardError: If the data is damaged.
            ValueError: If a row is null in a column of numbers, or texts or bytes are null in some rows of the batch
                only.
        """
        found, rows = self._take(check_indices(self, indices))
        places = np.arange(len(rows))
        return {
            name: make_batch(name, layout, [(Column(found[name]), places, rows)], len(rows))
            for name, layout in self._layouts.items()
            if layout is not None
        }

    @property
    def shard_sizes(self) -> Int64Array:
        """Number of rows in each fragment (F,)."""
        return self._fragments

    def place(self, index: int) -> Place:
        """Return where a row is stored: the dataset and version, and the row's number there."""
        check_index(self, index)
        return Place(f"{self.uri} version {self.version}", index % len(self))

    def fingerprint(self) -> str:
        """Return a text of the dataset's name, the version, the fragments' sizes and the columns."""
        name = os.path.basename(self.uri.rstrip("/"))  # noqa: PTH119 - also a URL's
        return f"lance-1 {name} version {self.version} {digest(self._fragments, repr(self.columns))}"

    def _read(self, indices: Int64Array) -> list[dict[str, object]]:
        if not len(indices):
            return []
        found, rows = self._take(indices)
        values = [to_samples(found[name]) if name in self._layouts else found[name] for name in self.columns]
        once = [dict(zip(self.columns, row, strict=True)) for row in zip(*values, strict=True)] or [{} for _ in rows]
        return [dict(once[row]) for row in rows.tolist()]

    def _take(self, indices: Int64Array) -> "tuple[dict[str, pa.Array | list[bytes]], Int64Array]":
        """Return the columns of the distinct rows in `indices` (B,), and the position of each index's row in them (B,).

        A column is an Arrow array (U,), or a list of U blobs, for U distinct rows in ascending order.
        """
        once, rows = np.unique(indices, return_inverse=True)
        data, wanted = self._handle(), once.tolist()
        found: dict[str, pa.Array | list[bytes]] = {}
        with _errors_named(f"{self.uri}: version {self.version}"):
            if self._layouts:
                table = data.take(wanted, columns=list(self._layouts))
                found = {name: _whole(table[name]) for name in self._layouts}
            for name in self._blobs:
                found[name] = [content for _, content in data.read_blobs(name, indices=wanted, preserve_order=True)]
        return found, rows


def _open(uri: str, version: int | None, options: dict[str, str] | None) -> "lance.LanceDataset":
    try:
        import lance
    except ImportError as error:
        raise ImportError(f"{uri!r} needs pylance: pip install '.[lance]' in a checkout of loaderkit.") from error

    with _errors_named(f"{uri}: version {version}" if version is not None else uri):
        return lance.dataset(uri, version=version, storage_options=options)


def _is_blob(field: "pa.Field") -> bool:
    """Return whether a column is of blobs: stored apart, so that a plain read gives positions, not bytes."""
    old = (field.metadata or {}).get(b"lance-encoding:blob") == b"true"
    return old or str(getattr(field.type, "extension_name", "")).startswith("lance.blob")


def _whole(column: "pa.ChunkedArray") -> "pa.Array":
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


@contextmanager
def _errors_named(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        raise ShardError(f"{what}: can't read the Lance dataset: {error}") from error
