"""Rows of HDF5 files: a row of each of their datasets, which must have one length. Read by chunk."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from loaderkit.datasets.base import Transform
from loaderkit.datasets.chunked.columns import (
    CACHE_BYTES,
    Blocks,
    Column,
    OpenArrays,
    as_columns,
    errors_named,
    make_column,
    one_length,
    put,
    shard_rows,
)
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, is_remote
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_choice, listed
from loaderkit.system.digests import digest
from loaderkit.system.per_thread import PerThread

if TYPE_CHECKING:
    import h5py

_WHOLE = "Write its rows to a file of its own and give that."
_RESTORE = "HDF5 would give fill values for them. Restore it, or accept that: missing='fill'."


class Hdf5Dataset(ShardedDataset[OpenArrays]):
    """The rows of HDF5 files: a sample is a dict with a row of each HDF5 dataset.

    A row of numbers is an array (*) or a number, a text is a string. With `shuffle=True` a Loader's shards are the chunks, and a chunk
    is decoded once for all its rows that are read together. Each worker opens the files itself.

    If a source file of a virtual dataset is missing, HDF5 gives fill values without an error, or reads another file of
    that name in the working folder. So the source files must be at the paths that the virtual dataset names.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        columns: Names of the datasets, such as "images" or "group/labels". By default all at the file's root, which
            must have one length.
        transform: Called with each row; its result replaces the row.
        missing: What to do if source files of virtual datasets are missing: raise an "error" when this dataset is
            created, or "fill" their rows with the fill value.
        chunk_cache_bytes: Most bytes of decoded chunks that each reading thread keeps.
        max_open: Files that a process keeps open, with all its threads.
        storage: How to reach remote files, and where to keep copies.

    Raises:
        FileNotFoundError: If there are no files.
        ShardError: If a file is damaged, its datasets differ in length, or files have other columns than the first.
        ImportError: If h5py is not installed.

    Examples:
        >>> import h5py
        >>> with h5py.File("a.h5", "w") as file:
        ...     file["x"] = np.arange(12, dtype=np.float32).reshape(6, 2)
        ...     file["label"] = np.arange(6)
        >>> lk.Hdf5Dataset("a.h5")[1]
        {'label': np.int64(1), 'x': array([2., 3.], dtype=float32)}
    """

    kind = "hdf5-1"
    suffixes: ClassVar[tuple[str, ...]] = (".h5", ".hdf5", ".he5")
    keeps_index: ClassVar[bool] = False

    def __init__(
        self,
        urls: Urls,
        columns: Sequence[str] | None = None,
        *,
        transform: Transform | None = None,
        missing: Literal["error", "fill"] = "error",
        chunk_cache_bytes: int = CACHE_BYTES,
        max_open: int = 256,
        storage: Storage | None = None,
    ) -> None:
        check_choice("Hdf5Dataset", "missing", missing, ("error", "fill"))
        self._names = listed("Hdf5Dataset", "columns", columns)
        self._missing = missing
        self._layouts: dict[str, list[Column]] = {}
        super().__init__(urls, transform=transform, max_open=max_open, storage=storage)
        self._blocks = PerThread(Blocks, chunk_cache_bytes)

    @property
    def shard_sizes(self) -> Int64Array:
        """Number of rows in each shard (S,), file by file: the chunks of the column with the largest rows.

        Small chunks are joined.
        """
        counts = zip(self.shards, super().shard_sizes.tolist(), strict=True)
        return np.concatenate([shard_rows(self._layouts[shard], count) for shard, count in counts])

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        with ExitStack() as opened:
            found = _choose(shard, self._open_file(shard, opened, head=True), self._names)
            size = one_length(shard, {name: data.shape[0] if data.shape else 0 for name, data in found.items()})
            columns = [_column(shard, name, data) for name, data in found.items()]
            if self._missing == "error":
                for data in found.values():
                    check_parts(shard, data)
        self._check_columns(shard, columns)
        self._layouts[shard] = columns
        return size, None

    def open(self, shard: str, index: ShardIndex) -> OpenArrays:
        with ExitStack() as opened:
            found = _choose(shard, self._open_file(shard, opened), self._names)
            arrays = {name: data.asstr() if _is_text(data) else data for name, data in found.items()}
            return OpenArrays(shard, arrays, self._layouts[shard], self._blocks.own, opened.pop_all().close)

    def read(self, handle: OpenArrays, rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        return handle.read(rows)

    def read_columns(self, indices: Int64Array) -> Any:
        """Return samples (B,) as columns: arrays (B, *) of numbers, and lists of B other values."""
        parts = [(places, self.handle(part).gather(rows)) for part, places, rows in self.to_read(indices)]
        if len(parts) == 1:
            return as_columns(parts[0][1])
        whole: dict[str, object] = {one.name: one.empty(len(indices)) for one in self._layouts[self.shards[0]]}
        for places, found in parts:
            for name, values in found.items():
                put(whole[name], places, values)
        return as_columns(whole)

    def fingerprint(self) -> str:
        """Return a text of the files' names and sizes, and the columns."""
        columns = [f"{one.name} {one.dtype} {one.shape}" for one in self._layouts[self.shards[0]]]
        return f"{super().fingerprint()} {digest(repr(columns))}"

    def _open_file(self, shard: str, opened: ExitStack, *, head: bool = False) -> "h5py.File":
        """Open a file, which `opened` closes.

        Open a local file by path, as HDF5 finds sources of virtual datasets from there.
        """
        try:
            import h5py
        except ImportError as error:
            raise ImportError(f"{shard!r} needs h5py: pip install '.[hdf5]' in a checkout of loaderkit.") from error
        source: object = shard
        if is_remote(shard):
            source = opened.enter_context(self.files.open_head(shard) if head else self.files.open(shard))
        with errors_named(f"{shard}: not a whole HDF5 file, it"):
            return opened.enter_context(h5py.File(source, "r"))

    def _check_columns(self, shard: str, columns: Sequence[Column]) -> None:
        first = next(iter(self._layouts.values()), columns)
        found, wanted = ({one.name: f"{one.dtype} {one.shape}" for one in each} for each in (columns, first))
        if found != wanted:
            raise ShardError(
                f"{shard}: has the columns {found}, wanted those of {self.shards[0]}: {wanted}. Name the common ones: columns=[...]."
            )


def _choose(shard: str, file: "h5py.File", names: Sequence[str] | None) -> "dict[str, h5py.Dataset]":
    """Return the chosen datasets of an open file by name; by default those with rows at its root."""
    import h5py

    known = _names(file)
    wanted = [name for name in known if "/" not in name and file[name].shape] if names is None else list(names)
    if not set(wanted) <= set(known) or not wanted:
        raise ShardError(
            f"{shard}: has the datasets {known[:20]}, wanted {names or 'some at its root'}. Name others: columns=['group/name']."
        )
    for name in wanted:
        if h5py.check_ref_dtype(file[name].dtype) is not None:
            raise ShardError(f"{shard}: {name!r} holds references, wanted numbers or texts. Name the others: columns=.")
    return {name: file[name] for name in wanted}


def _names(file: "h5py.File") -> list[str]:
    """Return the names of all datasets in a file, sorted, also of those that links lead to."""
    import h5py

    found: list[str] = []
    waiting = [("", file, frozenset[int]())]
    while waiting:
        prefix, group, above = waiting.pop()
        for name in group:
            item = group.get(name)  # None if the link leads nowhere
            if isinstance(item, h5py.Dataset):
                found.append(prefix + name)
            elif isinstance(item, h5py.Group) and item.id not in above:
                waiting.append((f"{prefix}{name}/", item, above | {group.id}))
    return sorted(found)


def _is_text(data: "h5py.Dataset") -> bool:
    import h5py

    kind = h5py.check_string_dtype(data.dtype)
    return kind is not None and (kind.encoding == "utf-8" or kind.length is None)


def _column(shard: str, name: str, data: "h5py.Dataset") -> Column:
    return make_column(shard, name, data.dtype, data.shape, data.chunks[0] if data.chunks else None)


def check_parts(where: str, data: "h5py.Dataset", above: frozenset[str] = frozenset()) -> None:
    """Raise a ShardError if a source of a virtual dataset is missing, or a source of that source.

    Args:
        where: The file of the dataset, for errors.
        data: A dataset of an open file.
        above: The virtual datasets that `data` is a source of, as "path:name".
    """
    import h5py

    if not data.is_virtual:
        return
    if is_remote(where):
        raise ShardError(f"{where}: {data.name!r} is a virtual dataset, whose parts are not found by URL. {_WHOLE}")
    me = f"{os.path.realpath(where)}:{data.name}"
    for path, name in sorted({(part.file_name, part.dset_name) for part in data.virtual_sources()}):
        if "%b" in path:  # a pattern for any number of files
            continue
        file = where if path == "." else os.path.join(os.path.dirname(where), path)  # noqa: PTH118, PTH120 - an absolute path stays
        if not os.path.isfile(file):  # noqa: PTH113
            raise ShardError(f"{where}: {data.name!r} has parts in {file}, which is missing. {_RESTORE}")
        with h5py.File(file, "r") as opened:
            if not isinstance(opened.get(name), h5py.Dataset):
                raise ShardError(
                    f"{where}: {data.name!r} has parts in {name!r} of {file}, which has no such dataset. {_RESTORE}"
                )
            if (part := f"{os.path.realpath(file)}:{name}") not in above | {me}:
                check_parts(file, opened[name], above | {me, part})
