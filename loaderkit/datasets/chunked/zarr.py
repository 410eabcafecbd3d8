"""Rows of Zarr stores: a row of each of their arrays, which must have one length. Read by chunk."""

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from loaderkit.datasets.base import Transform, check_index, check_indices
from loaderkit.datasets.chunked.columns import (
    CACHE_BYTES,
    Blocks,
    Column,
    OpenArrays,
    as_columns,
    as_samples,
    errors_named,
    make_column,
    one_length,
    shard_rows,
)
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.handles import Handle
from loaderkit.datasets.places import Place
from loaderkit.seeding.draws import Declares
from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_choice, listed
from loaderkit.system.digests import digest


class ZarrDataset(Declares):
    """The rows of a Zarr store of format version 2 or 3, with shards or without.

    A sample is a dict with a row of each array, or the row itself if the store is one array. A row of numbers is an array (*) or a
    number, a text is a string. With `shuffle=True` a Loader's shards are the chunks, and a chunk is decoded once for all its rows that are
    read together. Each worker opens the store itself.

    A chunk that is not in the store reads as the fill value, without an error. By default Zarr does not write chunks
    that hold only the fill value, so a lost chunk can't be told from one of zeros. Give `missing="error"` if the writer
    used `write_empty_chunks=True`, or if no chunk is all fill value.

    Args:
        store: Path or URL of the store, or a Zarr store such as `zarr.storage.ZipStore`.
        columns: Names of the arrays, such as "images" or "group/labels". By default all at `path`, which must have one
            length.
        path: Path of the group or array in the store; by default the root.
        transform: Called with each sample; its result replaces the sample.
        missing: What to do if chunks are not in the store, which is checked once, here: "warn", or raise an "error".
            "fill" does not check.
        chunk_cache_bytes: Most bytes of decoded chunks that each reading thread keeps.
        storage_options: How fsspec reaches the store at a URL, such as `{"endpoint_url": ...}`. Each chunk is a request
            of its own, and no local copies are kept.

    Raises:
        ShardError: If there is no such store or array, its arrays differ in length, or chunks are missing with
            `missing="error"`.
        ImportError: If zarr is not installed.

    Examples:
        >>> import zarr
        >>> group = zarr.open_group("a.zarr", mode="w")
        >>> _ = group.create_array("x", data=np.arange(1, 13, dtype=np.float32).reshape(6, 2), chunks=(4, 2))
        >>> _ = group.create_array("label", data=np.arange(1, 7), chunks=4)
        >>> lk.ZarrDataset("a.zarr")[1]
        {'label': np.int64(2), 'x': array([3., 4.], dtype=float32)}
    """

    def __init__(
        self,
        store: object,
        columns: Sequence[str] | None = None,
        *,
        path: str = "",
        transform: Transform | None = None,
        missing: Literal["warn", "error", "fill"] = "warn",
        chunk_cache_bytes: int = CACHE_BYTES,
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        check_choice("ZarrDataset", "missing", missing, ("warn", "error", "fill"))
        names = listed("ZarrDataset", "columns", columns)
        self.store = os.fspath(store) if isinstance(store, os.PathLike) else store
        self.transform = transform
        self._where = f"{self.store}/{path}" if path else str(self.store)
        options = dict(storage_options or {}) or None
        arrays = _open(self.store, path, names, options)
        self._length = one_length(self._where, {name: array.shape[0] for name, array in arrays.items() if array.shape})
        self._columns = [
            make_column(self._where, name, array.dtype, array.shape, array.chunks[0] if array.shape else None)
            for name, array in arrays.items()
        ]
        if missing != "fill" and (said := _missing(self._where, arrays)):
            if missing == "error":
                raise ShardError(f"{said} Restore them, or accept that: missing='fill'.")
            warnings.warn(
                f"ZarrDataset: {said} Zarr does not write chunks of nothing else, so they may be right. Say so: missing='fill'; or "
                "refuse them: missing='error'.",
                stacklevel=2,
            )
        self._handle = Handle(
            _open_arrays, self._where, self.store, path, names, options, self._columns, chunk_cache_bytes
        )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        sample = self._handle().read(np.array([index % len(self)]))[0]
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        rows = check_indices(self, indices)
        samples = as_samples(self._handle().gather(rows), len(rows))
        return samples if self.transform is None else per_sample(self.transform, samples)

    def read_columns(self, indices: Sequence[int] | Int64Array) -> Any:
        """Return samples (B,) as columns: arrays (B, *) of numbers, and lists of B other values."""
        return as_columns(self._handle().gather(check_indices(self, indices)))

    @property
    def shard_sizes(self) -> Int64Array:
        """Number of rows in each shard (S,): the chunks of the column with the largest rows.

        Small chunks are joined.
        """
        return shard_rows(self._columns, self._length)

    def place(self, index: int) -> Place:
        """Return where a sample is stored: the store, and the sample's row there."""
        check_index(self, index)
        return Place(self._where, index % len(self))

    def fingerprint(self) -> str:
        """Return a text of the store's name, the number of rows and the columns."""
        name = os.path.basename(self._where.rstrip("/")) if isinstance(self.store, str) else ""  # noqa: PTH119 - also a URL's
        columns = [f"{one.name} {one.dtype} {one.shape}" for one in self._columns]
        return f"zarr-1 {name}:{self._length} {digest(repr(columns))}"


def _open(store: object, path: str, names: list[str] | None, options: dict[str, object] | None) -> dict[str, Any]:
    """Return the arrays of a store by name. If the store is one array, its name is ""."""
    try:
        import zarr
    except ImportError as error:
        raise ImportError(f"{store!r} needs zarr: pip install '.[zarr]' in a checkout of loaderkit.") from error

    with errors_named(f"{store}: not a Zarr store, it"):
        found = zarr.open(store, mode="r", path=path, storage_options=options)
        if isinstance(found, zarr.Array):
            if names is not None:
                raise ShardError(f"{store}: is one array, wanted a group of arrays for columns={names}. Leave it out.")
            return {"": found}
        if names is None:
            return {name: array for name, array in sorted(found.arrays()) if array.shape}
        arrays = {name: found.get(name) for name in names}
    lacking = [name for name, array in arrays.items() if not isinstance(array, zarr.Array)]
    if lacking:
        known = sorted(name for name, _ in found.arrays())
        raise ShardError(
            f"{store}: has the arrays {known} and the groups {sorted(found.group_keys())} here, wanted {lacking}."
        )
    return arrays


def _open_arrays(
    where: str,
    store: object,
    path: str,
    names: list[str] | None,
    options: dict[str, object] | None,
    columns: Sequence[Column],
    most_bytes: int,
) -> OpenArrays:
    return OpenArrays(where, _open(store, path, names, options), columns, Blocks(most_bytes))


def _missing(where: str, arrays: Mapping[str, Any]) -> str:
    """Return a sentence that says which arrays lack chunks; "" if none does."""
    found = []
    for name, array in arrays.items():
        unit = array.shards or array.chunks  # what a file or object holds
        inner = math.prod(-(-size // step) for size, step in zip(unit, array.chunks, strict=True))
        wanted = math.prod(-(-size // step) for size, step in zip(array.shape, unit, strict=True))
        stored = array.nchunks_initialized // inner
        if stored < wanted:
            kind = "shards" if array.shards else "chunks"
            found.append(
                f"{wanted - stored:,} of {wanted:,} {kind} of {name or 'the array'!r} (fill value {array.fill_value})"
            )
    return f"{where}: not in the store, so their rows are the fill value: {', '.join(found)}." if found else ""
