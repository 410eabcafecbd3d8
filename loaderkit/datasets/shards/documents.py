"""Documents of different lengths in flat files of tokens, each with a second file that holds where they end."""

from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.ragged import Cut, Ragged, Spans, join_parts
from loaderkit.datasets.remote.storage import Storage
from loaderkit.datasets.remote.urls import Urls, is_remote, shard_name
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.mapped import Array, count_numbers, open_to_map
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.system.arrays import Int64Array

ENDS_SUFFIX = ".index"
_END = np.dtype("<i8")  # the files have uint64: a number beyond int64 is negative here, and so is refused


class DocumentDataset(ShardedDataset):
    """A dataset over documents in memory-mapped tokens, as datatrove writes them.

    The tokens of all documents are in `NAME`, without a header. `NAME.index` has the end of each
    document, counted in tokens (uint64, little-endian). A sample is an array (T,) of the
    given dtype. The default batch is a `Ragged`; if you use a transform, give the Loader a
    collate that takes different lengths.

    Args:
        urls: A path, folder (its `.ds` files), glob or URL, or a list of them. Remote files need a cache.
        dtype: The tokens' dtype, such as "uint16".
        transform: Called with each document.
        max_open: Files that a process keeps mapped, with all its threads.
        storage: How to reach remote files, and where to cache them.

    Raises:
        FileNotFoundError: If there are no shards.
        ValueError: If the dtype is not an integer.
        ShardError: If a file is cut, or has no file of ends that fits.

    Examples:
        >>> np.arange(6, dtype="uint16").tofile("a.ds")
        >>> np.array([2, 6], dtype="uint64").tofile("a.ds.index")
        >>> data = lk.DocumentDataset("a.ds", dtype="uint16")
        >>> data[1]
        array([2, 3, 4, 5], dtype=uint16)
        >>> next(iter(lk.Loader(data, batch_size=2))).offsets
        tensor([0, 2, 6])
    """

    kind = "documents-1"
    suffixes: ClassVar[tuple[str, ...]] = (".ds",)
    keeps_index: ClassVar[bool] = False
    maps: ClassVar[bool] = True
    files_each: ClassVar[int] = 2

    def __init__(
        self,
        urls: Urls,
        *,
        dtype: npt.DTypeLike = "uint16",
        transform: Callable[[Any], Any] | None = None,
        max_open: int = 1024,
        storage: Storage | None = None,
    ) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "iu":
            raise ValueError(f"DocumentDataset: dtype is {self.dtype}, wanted integers such as uint16.")
        self._tokens: dict[str, int] = {}
        try:
            super().__init__(urls, transform=transform, max_open=max_open, storage=storage)
        except FileNotFoundError as error:
            error.add_note(
                "loaderkit: DocumentDataset reads NAME.ds and NAME.ds.index. Give files of another name as a glob, such as "
                "'folder/*.bin', if each has a NAME.bin.index. For tokens without documents use lk.TokenDataset."
            )
            raise

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        ends = self._map_ends(shard)
        with open_to_map(self, shard) as file:
            self._tokens[shard] = count_numbers(shard, file, self.dtype, f"{self.dtype} tokens")
        found = int(ends[-1]) if len(ends) else 0
        if found != self._tokens[shard]:
            raise ShardError(
                f"{shard}: has {self._tokens[shard]:,} tokens of {self.dtype}, its last document ends at {found:,}. "
                "One of the two files is cut, or the dtype differs: try dtype='uint32'."
            )
        return len(ends), None

    def open(self, shard: str, index: ShardIndex) -> Spans:
        ends = self._map_ends(shard)
        if len(ends) != index.count:
            raise ShardError(f"{shard}{ENDS_SUFFIX}: changed since it was read. Make the dataset again.")
        with self.open_file(shard) as file:
            is_empty = not self._tokens[shard]
            flat = np.empty(0, self.dtype) if is_empty else np.asarray(np.memmap(file, dtype=self.dtype, mode="r"))
        return Spans(flat, ends, shard)

    def read(self, handle: Spans, rows: Int64Array, index: ShardIndex) -> list[Any]:
        native = self.dtype.newbyteorder("=")
        return [np.frombuffer(piece, self.dtype).astype(native) for piece in handle.pieces(rows)]

    def read_batch(self, indices: Int64Array) -> Ragged:
        """Return the documents' tokens end to end."""
        return self._join(indices, None)

    def read_pieces(self, indices: Int64Array, starts: Int64Array, stops: Int64Array) -> Ragged:
        """Return the tokens from `starts` to `stops` (B,) of documents (B,) end to end; other tokens are not read."""
        return self._join(indices, (starts, stops))

    def lengths(self, indices: Int64Array | None = None) -> Int64Array:
        """Return the number of tokens (N,) of each document, or of some documents (B,)."""
        if indices is None:
            return np.concatenate([np.diff(self._map_ends(shard), prepend=0) for shard in self.shards])
        sizes = np.empty(len(indices), np.int64)
        for part, places, rows in self.to_read(indices):
            sizes[places] = self.handle(part).sizes(rows)
        return sizes

    def fingerprint(self) -> str:
        """Return the files' names, sizes and number of tokens."""
        return f"{self.dtype} {sum(self._tokens.values())} tokens {super().fingerprint()}"

    def _join(self, indices: Int64Array, cut: Cut | None) -> Ragged:
        parts = [(self.handle(part), places, rows) for part, places, rows in self.to_read(indices)]
        return join_parts(parts, len(indices), self.dtype, cut)

    def _map_ends(self, shard: str) -> Array:
        path = shard + ENDS_SUFFIX
        with self._open_ends(shard, path) as file:
            count = count_numbers(path, file, _END, "uint64 ends")
            return np.asarray(np.memmap(file, dtype=_END, mode="r")) if count else np.empty(0, _END)

    def _open_ends(self, shard: str, path: str) -> BinaryIO:
        try:
            if is_remote(path) and path not in self._remote:
                self._remote[path] = self.storage.stat(path)
            return self.open_file(path)
        except FileNotFoundError as error:
            raise ShardError(
                f"{shard}: has no {shard_name(path)}, wanted a file with the ends of its documents (uint64, little-endian). "
                "For tokens without documents use lk.TokenDataset."
            ) from error
