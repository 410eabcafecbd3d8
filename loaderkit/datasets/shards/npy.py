"""Arrays in `.npy` files: one sample for each row."""

from typing import ClassVar

from loaderkit.datasets.base import Transform
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.mapped import Layout, MappedDataset, map_npy, npy_layout, open_to_map, take_native
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.system.arrays import Int64Array
from loaderkit.system.types import Array


class NpyDataset(MappedDataset):
    """A dataset over the rows of memory-mapped `.npy` files (N, *).

    A sample is an array (*). A batch is one tensor (B, *) if all files have the same
    dtype and row shape; otherwise give the Loader a collate that pads.

    Args:
        urls: A path, folder, glob or URL, or a list of them. Remote files need a cache.
        transform: Called with each row.
        max_open: Files that a process keeps mapped, with all its threads.
        storage: How to reach remote files, and where to cache them.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a file is not a whole `.npy` file of numbers.

    Examples:
        >>> np.save("a.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
        >>> data = lk.NpyDataset("a.npy")
        >>> data[1]
        array([2., 3.], dtype=float32)
        >>> next(iter(lk.Loader(data, batch_size=4))).shape
        torch.Size([4, 2])
    """

    kind = "npy-1"
    suffixes: ClassVar[tuple[str, ...]] = (".npy",)

    def __init__(
        self,
        urls: Urls,
        *,
        transform: Transform | None = None,
        max_open: int = 1024,
        storage: Storage | None = None,
    ) -> None:
        self._layouts: set[Layout] = set()
        super().__init__(urls, transform=transform, max_open=max_open, storage=storage)
        self.row_layout = next(iter(self._layouts)) if len(self._layouts) == 1 else None

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        with open_to_map(self, shard) as file:
            dtype, shape, _, _ = npy_layout(shard, file)
        if shape[0]:
            self._layouts.add((dtype.newbyteorder("="), shape[1:]))
        return shape[0], None

    def open(self, shard: str, index: ShardIndex) -> Array:
        with self.files.open(shard) as file:
            return map_npy(shard, file)

    def gather(self, handle: Array, rows: Int64Array) -> Array:
        return take_native(handle, rows)

    def fingerprint(self) -> str:
        """Return the files' names, numbers of rows and layouts."""
        return f"{super().fingerprint()} {sorted(f'{dtype}{shape}' for dtype, shape in self._layouts)}"
