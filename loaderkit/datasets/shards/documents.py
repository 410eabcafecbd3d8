"""Documents of several lengths in flat files of tokens, each with a file that says where they end."""

from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.ragged import Ragged, Spans, join_parts
from loaderkit.datasets.remote.storage import Storage
from loaderkit.datasets.remote.urls import Urls, is_remote, shard_name
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.mapped import Array, local_size
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.system.arrays import Int64Array

ENDS_SUFFIX = ".index"
_END = np.dtype("<i8")  # the files have uint64: what is beyond int64 is negative here, and refused


class DocumentDataset(ShardedDataset):
    """Documents in memory-mapped tokens: bare numbers in `NAME`, and in `NAME.index` where each document ends.

    Ends count tokens, as uint64 in little-endian order: the files that datatrove writes. A
    sample is an array (T,); tokens keep their dtype, which is the smallest to copy to a
    device. The default batch is a `Ragged` of all its documents' tokens, read at once;
    with a transform, give the Loader a collate that takes several lengths.

    Args:
        urls: A path, folder (its `.ds` files), glob or URL, or a list of them; remote ones need a cache.
        dtype: Of the tokens, such as "uint16".
        transform: From a document to a sample; its random numbers are the sample's own.
        max_open: Files kept mapped by each thread that reads.
        storage: How remote files are reached, and where copies of them are kept.

    Raises:
        FileNotFoundError: If there are no shards.
        ValueError: If the dtype is not of integers.
        ShardError: If a file is cut, or has no file of ends that fits.
    """

    kind = "documents-1"
    suffixes: ClassVar[tuple[str, ...]] = (".ds",)
    keeps_index: ClassVar[bool] = False

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
        super().__init__(urls, transform=transform, max_open=max_open, storage=storage)

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        ends, self._tokens[shard] = self._map_ends(shard), self._count_tokens(shard)
        found = int(ends[-1]) if len(ends) else 0
        if found != self._tokens[shard]:
            raise ShardError(
                f"{shard}: has {self._tokens[shard]:,} tokens of {self.dtype}, its last document ends at {found:,}. "
                "One of the two files is cut, or the dtype is another: dtype='uint32'?"
            )
        return len(ends), None

    def open(self, shard: str, index: ShardIndex) -> Spans:
        ends, tokens = self._map_ends(shard), self._count_tokens(shard)
        if (tokens, len(ends)) != (self._tokens[shard], index.count):
            raise ShardError(
                f"{shard}: has {tokens:,} tokens in {len(ends):,} documents, had {self._tokens[shard]:,} in "
                f"{index.count:,}. It changed while it was in use: make the dataset anew."
            )
        with self.open_file(shard) as file:
            flat = np.asarray(np.memmap(file, dtype=self.dtype, mode="r")) if tokens else np.empty(0, self.dtype)
        return Spans(flat, ends, shard)

    def read(self, handle: Spans, rows: Int64Array, index: ShardIndex) -> list[Any]:
        native = self.dtype.newbyteorder("=")
        return [handle.flat[start:end].astype(native) for start, end in zip(*handle.places(rows), strict=True)]

    def read_batch(self, indices: Int64Array) -> Ragged:
        """Return the documents' tokens end to end."""
        parts: list[tuple[Spans, Int64Array, Int64Array]]
        parts = [(self.handle(part), places, rows) for part, places, rows in self.by_shard(indices)]
        if len(parts) == 1:
            return parts[0][0].batch(parts[0][2])
        return join_parts(parts, len(indices), self.dtype)

    def lengths(self) -> Int64Array:
        """Return the number of tokens (N,) of each document."""
        found = [np.diff(self._map_ends(shard), prepend=0) for shard in self.shards]
        return np.concatenate(found)

    def fingerprint(self) -> str:
        """Name the files, and the tokens in them."""
        return f"{self.dtype} {sum(self._tokens.values())} tokens {super().fingerprint()}"

    def _count_tokens(self, shard: str) -> int:
        with self.open_file(shard) as file:
            size = local_size(shard, file)
        if size % self.dtype.itemsize:
            raise ShardError(f"{shard}: cut, {size:,} bytes are no whole number of {self.dtype} tokens.")
        return size // self.dtype.itemsize

    def _map_ends(self, shard: str) -> Array:
        path = shard + ENDS_SUFFIX
        with self._open_ends(shard, path) as file:
            size = local_size(path, file)
            if size % _END.itemsize:
                raise ShardError(f"{path}: cut, {size:,} bytes are no whole number of uint64 ends.")
            return np.asarray(np.memmap(file, dtype=_END, mode="r")) if size else np.empty(0, _END)

    def _open_ends(self, shard: str, path: str) -> BinaryIO:
        try:
            if is_remote(path) and path not in self._remote:
                self._remote[path] = self._storage.stat(path)
            return self.open_file(path)
        except FileNotFoundError as error:
            raise ShardError(
                f"{shard}: has no {shard_name(path)}, wanted the ends of its documents there (uint64, little-endian). "
                "For tokens without documents use lk.TokenDataset."
            ) from error
