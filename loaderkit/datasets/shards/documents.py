"""Documents of different lengths in flat files of tokens. A second file or a header says where each ends."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.ragged import Cut, Ragged, Spans, join_parts
from loaderkit.datasets.shards.document_ends import DocumentEnds, datatrove_ends, litdata_ends, megatron_ends
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.mapped import count_numbers, open_to_map
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, shard_name
from loaderkit.system.arrays import Int64Array
from loaderkit.system.types import DType

ENDS_SUFFIX = ".index"
_CHUNKS = "index.json"  # litdata's index of a folder


class DocumentDataset(ShardedDataset[Spans]):
    """Documents in memory-mapped tokens, as several tools write them.

    A sample is an array (T,) of the tokens' dtype. The default batch is a `Ragged`; if you use a transform, give the
    Loader a collate that takes different lengths. The files of each shard say which layout it has:

    | written by | the tokens | the ends of documents |
    |---|---|---|
    | datatrove, `TokenFormat` | `NAME` (`.ds` or `.bin`), without a header | `NAME.index`, in tokens (uint64, little-endian) |
    | Megatron-LM, NeMo, GPT-NeoX | `NAME.bin` | `NAME.idx` |
    | litdata, litgpt | `chunk-0-0.bin`, ..., one integer tensor for each document | the same file, and `index.json` |

    Other chunks of litdata are for `LitDataset`. Files of tokens without documents, as nanoGPT and llm.c write them, are for `TokenDataset`.

    Args:
        urls: A path, folder (its `.ds` and `.bin` files), glob or URL, or a list of them. Remote files need a cache.
        dtype: The tokens' dtype, such as "uint32". By default the dtype that the files declare, or uint16 if they
            declare none.
        transform: Called with each document.
        max_open: Files that a process keeps mapped, with all its threads.
        storage: How to reach remote files, and where to cache them.

    Raises:
        FileNotFoundError: If there are no shards.
        ValueError: If the dtype is not an integer.
        ShardError: If a file is cut, or no file says where its documents end, or that file does not fit.

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
    shared_suffixes: ClassVar[tuple[str, ...]] = (".bin",)
    keeps_index: ClassVar[bool] = False
    maps: ClassVar[bool] = True
    files_each: ClassVar[int] = 2

    def __init__(
        self,
        urls: Urls,
        *,
        dtype: "npt.DTypeLike | None" = None,
        transform: Transform | None = None,
        max_open: int = 1024,
        storage: Storage | None = None,
    ) -> None:
        self._given = None if dtype is None else np.dtype(dtype)  # or declared by the first shard
        if self.dtype.kind not in "iu":
            raise ValueError(f"DocumentDataset: dtype is {self.dtype}, wanted integers such as uint16.")
        self._tokens: dict[str, int] = {}
        super().__init__(urls, transform=transform, max_open=max_open, storage=storage)

    @property
    def dtype(self) -> DType:
        """The tokens' dtype."""
        return self._given or np.dtype("uint16")

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        ends, dtype, start = self._find_ends(shard)
        if dtype is not None and dtype != self.dtype:
            if self._given is not None:
                raise ShardError(
                    f"{shard}: declares tokens of {dtype}, wanted {self.dtype}, as given or as in other shards."
                )
            self._given = dtype
        self._given = self.dtype
        with open_to_map(self, shard) as file:
            self._tokens[shard] = count_numbers(shard, file, self.dtype, f"{self.dtype} tokens", start)
        found = int(ends[-1]) if len(ends) else 0
        if found != self._tokens[shard]:
            raise ShardError(
                f"{shard}: has {self._tokens[shard]:,} tokens of {self.dtype}, its last document ends at {found:,}. "
                "One of the two files is cut, or the dtype differs: try dtype='uint32'."
            )
        return len(ends), None

    def open(self, shard: str, index: ShardIndex) -> Spans:
        ends, _, start = self._find_ends(shard)
        if len(ends) != index.count:
            raise ShardError(
                f"{shard}: the ends of its documents changed since they were read. Make the dataset again."
            )
        with self.files.open(shard) as file:
            is_empty = not self._tokens[shard]
            flat = np.empty(0, self.dtype) if is_empty else np.memmap(file, dtype=self.dtype, mode="r", offset=start)
        return Spans(np.asarray(flat), ends, shard)

    def read(self, handle: Spans, rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        native = self.dtype.newbyteorder("=")
        return [np.frombuffer(piece, self.dtype).astype(native) for piece in handle.pieces(rows)]

    def read_batch(self, indices: Int64Array) -> Ragged:
        """Return the documents at `indices` (B,) as a `Ragged` of tokens."""
        return self._join(indices, None)

    def read_pieces(self, indices: Int64Array, starts: Int64Array, stops: Int64Array) -> Ragged:
        """Return the tokens `starts` to `stops` (B,) of documents (B,), as a `Ragged`. Other tokens are not read."""
        return self._join(indices, (starts, stops))

    def lengths(self, indices: Int64Array | None = None) -> Int64Array:
        """Return the number of tokens (N,) of each document, or of some documents (B,)."""
        if indices is None:
            return np.concatenate([np.diff(self._find_ends(shard).ends[:], prepend=0) for shard in self.shards])
        sizes = np.empty(len(indices), np.int64)
        for part, places, rows in self.to_read(indices):
            sizes[places] = self.handle(part).sizes(rows)
        return sizes

    def fingerprint(self) -> str:
        """Return the files' names, numbers of documents, and the total number of tokens."""
        return f"{self.dtype} {sum(self._tokens.values())} tokens {super().fingerprint()}"

    def _join(self, indices: Int64Array, cut: Cut | None) -> Ragged:
        parts = [(self.handle(part), places, rows) for part, places, rows in self.to_read(indices)]
        return join_parts(parts, len(indices), self.dtype, cut)

    def _find_ends(self, shard: str) -> DocumentEnds:
        """Return where a shard's documents end. The first layout whose files exist is used."""
        index = shard.removesuffix(".bin") + ".idx"
        with ExitStack() as files:
            if (file := self._open_other(shard + ENDS_SUFFIX, files)) is not None:
                metadata = None if self._given else self._open_other(shard + ".metadata", files)
                return datatrove_ends(shard + ENDS_SUFFIX, file, metadata)
            if (file := self._open_other(index, files)) is not None:
                return megatron_ends(index, file)
            if (chunks := self._open_other(shard.removesuffix(shard_name(shard)) + _CHUNKS, files)) is not None:
                return litdata_ends(shard, files.enter_context(open_to_map(self, shard)), chunks)
        raise ShardError(
            f"{shard}: has no {shard_name(shard)}{ENDS_SUFFIX} (uint64, little-endian) and no {shard_name(index)}, wanted a file "
            "with the ends of its documents. For tokens without documents, as nanoGPT and llm.c write them, use lk.TokenDataset."
        )

    def _open_other(self, path: str, files: ExitStack) -> BinaryIO | None:
        """Open another file of a shard; None if it does not exist."""
        try:
            self.files.add(path)
            return files.enter_context(self.files.open(path))
        except FileNotFoundError:
            return None
