"""Windows of a fixed length over flat files of tokens."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.memory.array import take
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.mapped import MappedDataset, count_numbers, map_npy, npy_layout, open_to_map
from loaderkit.files.foreign_formats import FORMATS, is_of
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, is_remote, shard_name
from loaderkit.system.arrays import Int64Array, native
from loaderkit.system.types import Array, DType

_HEADED = {(20240520, 1): "<u2", (20240801, 7): "<u4"}  # llm.c's magic and version; its header has 256 numbers (int32)
_HEADER = 1024


@dataclass(frozen=True)
class _Tokens:
    flat: Array
    windows: Array  # (T - length + 1, length), a view; (0, length) if the shard is shorter than a window
    tiles: Array | None  # (T // length, length), no overlap: gathers in 0.8 of the time, see benchmarks/tokens.py


class TokenDataset(MappedDataset):
    """Windows of memory-mapped tokens.

    The files are `.npy` files (T,), files of bare numbers (nanoGPT), or those of llm.c. Window i of a shard begins at
    token i * stride and does not reach into the next shard. Tokens keep their dtype, so that fewer bytes are copied to
    the device: widen them there (`batch.long()`). For inputs and targets shifted by one, use windows of T + 1 tokens
    with a stride of T.

    Args:
        urls: A path, folder, glob or URL, or a list of them. Remote files need a cache.
        length: Tokens in a window.
        dtype: Tokens' dtype in bare files, such as "uint16". Leave it out for llm.c's, which declare it, as `.npy` files do.
        stride: Tokens from one window to the next; `length` by default.
        remainder: What to do with tokens after a shard's last full window: "drop" leaves
            them out (`left_out` counts them), "keep" makes a shorter window, so that
            batches need a collate that pads.
        transform: Called with each window.
        max_open: Files that a process keeps mapped, with all its threads.
        storage: How to reach remote files, and where to cache them.

    Raises:
        FileNotFoundError: If there are no shards.
        ValueError: If length or stride is less than 1, or a dtype is missing.
        ShardError: If a file is cut, or has another dtype.

    Examples:
        >>> np.save("a.npy", np.arange(9, dtype=np.uint16))
        >>> data = lk.TokenDataset("a.npy", length=4)
        >>> next(iter(lk.Loader(data, batch_size=2))).long()
        tensor([[0, 1, 2, 3],
                [4, 5, 6, 7]])
        >>> data.left_out
        1
    """

    kind = "tokens-1"
    suffixes: ClassVar[tuple[str, ...]] = (".bin", ".npy", ".tokens")

    def __init__(
        self,
        urls: Urls,
        *,
        length: int,
        dtype: "npt.DTypeLike | None" = None,
        stride: int | None = None,
        remainder: Literal["drop", "keep"] = "drop",
        transform: Transform | None = None,
        max_open: int = 1024,
        storage: Storage | None = None,
    ) -> None:
        self.length, self.stride, self.remainder = length, length if stride is None else stride, remainder
        if self.length < 1 or self.stride < 1:
            raise ValueError(f"TokenDataset: length is {length}, stride {self.stride}; wanted at least 1.")
        if remainder not in ("drop", "keep"):
            raise ValueError(f"TokenDataset: remainder is {remainder!r}, wanted 'drop' or 'keep'.")
        self.dtype: DType | None = None if dtype is None else np.dtype(dtype)
        if self.dtype is not None and self.dtype.kind not in "iu":
            raise ValueError(f"TokenDataset: dtype is {self.dtype}, wanted integers such as uint16.")
        self._bare = dtype is not None  # bare files have no header: a remote one need not be read to count its tokens
        self._tokens: dict[str, int] = {}
        self._starts: dict[str, int] = {}  # first byte of the tokens, after a header
        super().__init__(urls, transform=transform, max_open=max_open, storage=storage)
        is_uniform = self.dtype is not None and all(
            (count - 1) * self.stride + length <= self._tokens[shard]
            for shard, count in zip(self.shards, self.shard_sizes.tolist(), strict=True)
            if count
        )
        self.row_layout = (self.dtype.newbyteorder("="), (length,)) if is_uniform and self.dtype else None
        short = [shard for shard, tokens in self._tokens.items() if 0 < tokens < length and remainder == "drop"]
        if short:
            warnings.warn(
                f"TokenDataset: {len(short)} of {len(self.shards)} shards have fewer tokens than one window of {length} "
                f"and are never read, the first is {short[0]} with {self._tokens[short[0]]}. "
                "remainder='keep' turns them into shorter windows.",
                stacklevel=2,
            )

    @property
    def left_out(self) -> int:
        """Number of tokens after the last window of each shard, summed over shards; 0 with remainder="keep"."""
        return sum(
            max(0, self._tokens[shard] - ((count - 1) * self.stride + self.length if count else 0))
            for shard, count in zip(self.shards, self.shard_sizes.tolist(), strict=True)
        )

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        with open_to_map(self, shard) as file:
            tokens = self._tokens[shard] = self._count_tokens(shard, file)
        full = max(0, (tokens - self.length) // self.stride + 1)
        covered = (full - 1) * self.stride + self.length if full else 0
        more = self.remainder == "keep" and covered < tokens and full * self.stride < tokens
        return full + more, None

    def open(self, shard: str, index: ShardIndex) -> _Tokens:
        with self.files.open(shard) as file:
            if shard_name(shard).endswith(".npy"):
                flat = map_npy(shard, file)
            else:
                if self._bare and _declared(file) is not None:
                    raise ShardError(f"{shard}: has a header of llm.c, which declares its dtype. Leave dtype= out.")
                flat = np.asarray(np.memmap(file, dtype=self.dtype, mode="r", offset=self._starts.get(shard, 0)))  # type: ignore[call-overload]  # numpy's stub wants a dtype that is known before the run
        is_short = len(flat) < self.length
        windows = flat[:0].reshape(0, self.length) if is_short else sliding_window_view(flat, self.length)
        tiles = flat[: len(flat) // self.length * self.length].reshape(-1, self.length)
        return _Tokens(flat, windows, tiles if self.stride == self.length else None)

    def gather(self, handle: _Tokens, rows: Int64Array) -> Array:
        if handle.tiles is not None:
            return native(take(handle.tiles, rows))
        return native(handle.windows[rows * self.stride])  # `take` would first copy the whole view

    def read(self, handle: _Tokens, rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        starts = rows * self.stride
        full = starts < len(handle.windows)
        windows = list(self.gather(handle, rows[full]))
        if len(windows) == len(rows):
            return windows
        native, whole = handle.flat.dtype.newbyteorder("="), iter(windows)
        return [
            next(whole) if is_full else handle.flat[start:].astype(native)
            for start, is_full in zip(starts.tolist(), full.tolist(), strict=True)
        ]

    def fingerprint(self) -> str:
        """Return the files' names and numbers of windows, and how they are cut into windows."""
        cut = f"length={self.length} stride={self.stride} {self.remainder} {self.dtype}"
        return f"{cut} {sum(self._tokens.values())} tokens {super().fingerprint()}"

    def _count_tokens(self, shard: str, file: BinaryIO) -> int:
        if shard_name(shard).endswith(".npy"):
            dtype, shape, _, _ = npy_layout(shard, file)
            self.dtype = self.dtype or dtype
            if dtype.kind not in "iu" or len(shape) != 1 or dtype != self.dtype:
                raise ShardError(f"{shard}: holds {dtype} of shape {shape}, wanted tokens (T,) of {self.dtype}.")
            return shape[0]
        if not self._bare and (header := _declared(file)) is not None:
            declared, tokens = header
            self.dtype = self.dtype or declared
            found = count_numbers(shard, file, declared, f"{declared} tokens", _HEADER)
            if self.dtype != declared or found != tokens:
                raise ShardError(
                    f"{shard}: has {found:,} tokens of {declared} after its header, wanted {tokens:,} of {self.dtype}. It is cut, or "
                    "the shards before it have another dtype."
                )
            self._starts[shard] = _HEADER
            return found
        if shard == self.shards[0]:
            _refuse_litdata(shard)
        if self.dtype is None:
            raise ValueError(
                f"TokenDataset: {shard_name(shard)} does not declare a dtype, wanted one such as dtype='uint16'."
            )
        return count_numbers(shard, file, self.dtype, f"{self.dtype} tokens")


def _refuse_litdata(shard: str) -> None:
    """Raise a ShardError if a local file is a chunk of litdata: its header would be read as tokens."""
    if not is_remote(shard) and is_of(Path(shard).parent, "litdata"):
        one = FORMATS["litdata"]
        raise ShardError(
            f"{Path(shard).parent}: is {one.name}, as index.json shows: the head of {shard_name(shard)} would be read as tokens. "
            f"{one.way_out}"
        )


def _declared(file: BinaryIO) -> tuple[DType, int] | None:
    """Return the dtype and the number of tokens that a header of llm.c declares; None if there is no such header."""
    magic, version, tokens = np.frombuffer(file.read(12).ljust(12, b"\0"), "<i4").tolist()
    declared = _HEADED.get((magic, version))
    return None if declared is None else (np.dtype(declared), tokens)
