"""Windows of one length over documents that are shuffled and joined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.base import as_rows, check_index, reads_pieces
from loaderkit.sampling.fingerprint import fingerprint
from loaderkit.sampling.order import Order, Shuffled, cached
from loaderkit.sampling.permutation import permutation
from loaderkit.seeding.draws import Declares
from loaderkit.seeding.keys import derive_seed, hash_positions
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer
from loaderkit.system.types import Array


class WindowDataset(Declares):
    """Windows of one length over shuffled documents, joined end to end.

    This is how Megatron's `GPTDataset` makes samples. A window may begin and end inside documents. With `shuffle=True` a
    Loader takes the documents in another order each epoch, and shuffles the windows. Any other order gives epoch 0's windows.
    For inputs and targets shifted by one, use windows of T + 1 tokens with a stride of T.

    No index is stored. Documents are shuffled in two steps: blocks of neighbours, then the documents in each block. This
    needs 24 bytes of memory for each block. `block=1` shuffles documents one by one.

    Window w of epoch e has the index e * len(data) + w, so `data[index]` and `loader.indices` agree.

    Args:
        documents: A `DocumentDataset` without a transform, or a subset of one. Give each document an end token.
        length: Tokens in a window.
        stride: Tokens from one window to the next; `length` by default.
        seed: Seed of the documents' order.
        block: Number of neighbouring documents that stay together in a shuffle.

    Raises:
        TypeError: If parts of documents can't be read.
        ValueError: If a number is out of range, or all documents together are shorter than one window.

    Examples:
        >>> manifest = lk.write_shards(["abc", "defgh", "ij"], "shards", format=lk.TokenFormat())
        >>> data = lk.WindowDataset(lk.DocumentDataset("shards/*.bin"), 4)
        >>> [bytes(window.tolist()) for window in data]
        [b'ijab', b'cdef']
        >>> [bytes(data[len(data) + number].tolist()) for number in range(len(data))]
        [b'defg', b'habc']
    """

    def __init__(
        self, documents: Any, length: int, *, stride: int | None = None, seed: int = 0, block: int = 64
    ) -> None:
        for name, number in (("length", length), ("stride", length if stride is None else stride), ("block", block)):
            check_integer("WindowDataset", name, number, 1)
        if not reads_pieces(documents):
            raise TypeError(
                f"WindowDataset: parts of a {type(documents).__name__}'s samples can't be read, wanted a loaderkit.DocumentDataset "
                "without a transform. Write one with loaderkit.TokenFormat; transform windows with loaderkit.MapDataset."
            )
        self.documents, self.length, self.stride = documents, int(length), int(length if stride is None else stride)
        self.seed, self.block = seed, int(block)
        # Only the sums are kept: 10^8 lengths take 800 MB.
        starts = np.arange(0, len(documents), self.block)
        self._sums = np.add.reduceat(documents.lengths(), starts) if len(starts) else np.empty(0, np.int64)
        self._tokens = int(self._sums.sum())
        if self._tokens < self.length:
            raise ValueError(
                f"WindowDataset: all {len(documents):,} documents together have {self._tokens:,} tokens, wanted at least one window "
                f"of {self.length:,}."
            )
        self._epochs: dict[int, object] = {}

    def __len__(self) -> int:
        return (self._tokens - self.length) // self.stride + 1

    def __iter__(self) -> Iterator[Any]:  # Python's default would not end: any index has a window of some epoch
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Array:
        if index < 0:
            check_index(self, index)
            index += len(self)
        return self.read_batch(np.array([index]))[0].numpy()

    def __getitems__(self, indices: Sequence[int]) -> list[Array]:
        return list(self.read_batch(as_rows(self, indices)).numpy())

    def read_batch(self, indices: Int64Array) -> Tensor:
        """Return windows (B, length) in the documents' dtype."""
        if indices.size and indices.min() < 0:
            raise IndexError(f"WindowDataset: index {indices.min()}, wanted at least 0.")
        epochs, windows = np.divmod(indices, len(self))
        if len(indices) > 1 and (epochs != epochs[0]).any():
            return torch.stack([self.read_batch(indices[row : row + 1])[0] for row in range(len(indices))])
        epoch = int(epochs[0]) if len(epochs) else 0
        values: Tensor = self.documents.read_pieces(*self._find_pieces(epoch, windows * self.stride)).values
        return values.view(len(indices), self.length)

    @property
    def left_out(self) -> int:
        """Number of tokens that are after an epoch's last window. Which tokens these are differs between epochs."""
        return self._tokens - (len(self) - 1) * self.stride - self.length

    def epoch_order(self, seed: int) -> Order:
        """Return the order that a Loader with shuffle=True uses."""
        return _EpochWindows(len(self), seed=seed)

    def fingerprint(self) -> str:
        how = f"length={self.length} stride={self.stride} seed={self.seed} block={self.block}"
        return f"windows {how} of {fingerprint(self.documents, len(self.documents))}"

    def _parts(self) -> list[object]:
        return [self.documents]

    def _find_pieces(self, epoch: int, starts: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the pieces of documents, in order, that make up the windows which begin at `starts` (B,).

        Return for each piece its document, its first token in that document, and its end there, each (P,).
        """
        order, ends = cached(self, epoch, lambda: self._shuffle_blocks(epoch))
        firsts = np.searchsorted(ends, starts, side="right")
        counts = np.searchsorted(ends, starts + self.length, side="left") - firsts + 1
        # Repeat each window for each block that it touches (W,). Arrays below are (W, D) for D documents of a block.
        starts = np.repeat(starts, counts)
        places = np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        blocks, rows = np.unique(order[places], return_inverse=True)
        before = ends[places] - self._sums[order[places]]
        documents, begins = (each[rows] for each in self._arrange(epoch, blocks))
        offsets = begins[:, :-1]
        low = np.maximum((starts - before)[:, None], offsets)
        high = np.minimum((starts + self.length - before)[:, None], begins[:, 1:])
        taken = low < high
        return documents[taken], (low - offsets)[taken], (high - offsets)[taken]

    def _shuffle_blocks(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        """Return the epoch's order of the blocks (B,), and where each ends (B,), in tokens.

        The ends are those of the blocks joined in that order.
        """
        seed = derive_seed("blocks", self.seed)
        order = permutation(len(self._sums), seed, epoch)(np.arange(len(self._sums), dtype=np.int64))
        return order, np.cumsum(self._sums[order])

    def _arrange(self, epoch: int, blocks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the epoch's order of the documents (K, D) of blocks (K,), and where each begins (K, D + 1), in tokens.

        Beginnings are counted from the start of the block, and the last one is the block's end.
        """
        size, inside = len(self.documents), np.arange(self.block)
        documents = blocks[:, None] * self.block + inside
        # Random words whose lowest bits are the documents' positions in the block, so that sorting shuffles them.
        mask = np.uint64((1 << (self.block - 1).bit_length()) - 1)
        words = hash_positions(documents, "documents", self.seed, epoch) & ~mask | inside.astype(np.uint64)
        words.sort(axis=1)
        documents = blocks[:, None] * self.block + (words & mask).view(np.int64)
        lengths = self.documents.lengths(np.minimum(documents, size - 1).ravel()).reshape(documents.shape)
        begins = np.zeros((len(blocks), self.block + 1), dtype=np.int64)
        np.cumsum(np.where(documents < size, lengths, 0), axis=1, out=begins[:, 1:])  # the last block may be smaller
        return documents, begins

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_epochs": {}}


@dataclass(frozen=True)
class _EpochWindows(Shuffled):
    """The windows of each epoch, shuffled. Window w of epoch e has index e * length + w."""

    _epochs: dict[int, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        return super().at(epoch, positions) + epoch * self.length

    def key(self, epoch: int) -> str:
        return f"windows-1(seed={self.seed})"
