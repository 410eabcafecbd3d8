"""Arrays in `.npy` files, one after another."""

from collections.abc import Callable
from typing import Any, ClassVar

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.remote.storage import Storage
from loaderkit.datasets.remote.urls import Urls
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.mapped import Array, Layout, MappedDataset, map_npy, npy_layout, take_native
from loaderkit.system.arrays import Int64Array


class NpyDataset(MappedDataset):
    """The rows of memory-mapped `.npy` files (N, *).

    A sample is an array (*), a copy; a batch is one tensor (B, *), read at once
    where all files have one dtype and shape of row. Else give a collate
    that pads.

    Args:
        urls: A path, folder, glob or URL, or a list of them; remote ones need a cache.
        transform: From a row to a sample; its random numbers are the sample's own.
        max_open: Files kept mapped by each thread that reads.
        storage: How remote files are reached, and where copies of them are kept.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a file is not a whole `.npy` file, or not of numbers.
    """

    kind = "npy-1"
    suffixes: ClassVar[tuple[str, ...]] = (".npy",)

    def __init__(
        self,
        urls: Urls,
        *,
        transform: Callable[[Any], Any] | None = None,
        max_open: int = 1024,
        storage: Storage | None = None,
    ) -> None:
        self._layouts: set[Layout] = set()
        super().__init__(urls, transform=transform, max_open=max_open, storage=storage)
        self.row_layout = next(iter(self._layouts)) if len(self._layouts) == 1 else None

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        with self.open_file(shard) as file:
            dtype, shape, _, _ = npy_layout(shard, file)
        if shape[0]:
            self._layouts.add((dtype.newbyteorder("="), shape[1:]))
        return shape[0], None

    def open(self, shard: str, index: ShardIndex) -> Array:
        with self.open_file(shard) as file:
            array = map_npy(shard, file)
        if len(array) != index.count:
            raise ShardError(
                f"{shard}: has {len(array):,} rows, had {index.count:,}. It changed while it was in use: "
                "make the dataset anew."
            )
        return array

    def gather(self, handle: Array, rows: Int64Array) -> Array:
        return take_native(handle, rows)

    def fingerprint(self) -> str:
        """Name the files, their sizes and layouts."""
        return f"{super().fingerprint()} {sorted(f'{dtype}{shape}' for dtype, shape in self._layouts)}"
