"""A shuffle that reads shards almost in order: few are open at a time, and each by few workers."""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.order import Order, Shuffled, cached, digest
from loaderkit.sampling.shard_line import ShardLine
from loaderkit.system.arrays import Int64Array

MAX_WINDOW = 1 << 16
_POSITIONS = 1 << 14  # looked up at a time: the temporaries stay in a core's cache, and need no fresh pages


class ShardOrder(Order):
    """A new shuffle each epoch that keeps reads local: a function of (seed, epoch) and its own parameters.

    The shards are shuffled, laid end to end as a ring that is opened at a random
    place, and cut into `lanes` pieces whose sizes differ by at most one. Each
    lane is cut into equal windows of at most `window` samples, and each window
    is shuffled: a true permutation. Blocks of positions are dealt from the lanes
    in turn; what is left of each lane, less than a block, comes at the end.
    Nothing is dropped. Set-up is O(shards + lanes) an epoch; memory is 8 bytes
    for each sample of the windows last used, about 2 x lanes.

    Where `block` is the batch size and `lanes` a multiple of ranks x workers,
    each lane is read by one worker, so that a shard is opened by one worker,
    and by two where a lane ends in it. A batch then mixes the samples of one
    window. With a block of batch size / m it mixes m windows, and the lanes
    should be a multiple of m x ranks x workers. A block larger than the batch
    shares each lane between workers.

    A Loader that makes this order itself takes its batch size as the block. The
    block is part of the order's key, and a resumed loader takes it over from the
    state: another batch size continues the same order.

    Data that is sorted within its shards needs a window larger than the runs of
    what is alike; or shuffle it as a whole: `order=Shuffled(len(dataset))`.

    Args:
        shard_sizes: Samples in each shard (S,), in the dataset's order; 0 is allowed.
        seed: Of the shuffle.
        lanes: Places that are read in turn; about lanes x (1 + window / samples
            in a shard) shards are in use at a time, over all ranks and workers.
        window: Samples that are shuffled among each other, at most 65,536.
        block: Positions dealt from a lane before the next lane's turn.

    Raises:
        ValueError: If a parameter is out of range.
    """

    def __init__(
        self,
        shard_sizes: Sequence[int] | npt.NDArray[Any],
        *,
        seed: int = 0,
        lanes: int = 16,
        window: int = 4096,
        block: int = 32,
    ) -> None:
        sizes = np.asarray(shard_sizes)
        if sizes.ndim != 1 or (sizes.size and (sizes.dtype.kind not in "iu" or sizes.min() < 0)):
            raise ValueError(
                f"ShardOrder: shard_sizes have shape {sizes.shape} and dtype {sizes.dtype}, "
                "wanted one axis of integers of at least 0, the number of samples in each shard."
            )
        for name, value, most in (("lanes", lanes, None), ("window", window, MAX_WINDOW), ("block", block, None)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most and value > most):
                limit = f"from 1 to {most:,}" if most else "of at least 1"
                raise ValueError(f"ShardOrder: {name} is {value!r}, wanted an integer {limit}.")
        self.shard_sizes = sizes.astype(np.int64)
        self.seed, self.lanes, self.window, self.block = seed, lanes, window, block
        self._size = int(self.shard_sizes.sum())
        self._epochs: dict[int, Any] = {}

    def size(self, epoch: int) -> int:
        return self._size

    @property
    def reach(self) -> int:
        return self._size

    def key(self, epoch: int) -> str:
        cut = f"lanes={self.lanes}, window={self.window}, block={self.block}"
        return f"shards-4({digest(self.shard_sizes)}, seed={self.seed}, {cut})"

    def with_block_of(self, key: str) -> "ShardOrder":
        """Return this order with the block that another's key names, if that is all in which they differ."""
        found = re.search(r"block=([1-9]\d*)\)$", key)
        if found is None:
            return self
        other = ShardOrder(
            self.shard_sizes, seed=self.seed, lanes=self.lanes, window=self.window, block=int(found.group(1))
        )
        return other if other.key(0) == key else self

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        result = np.empty(len(positions), dtype=np.int64)
        for low in range(0, len(positions), _POSITIONS):
            some = positions[low : low + _POSITIONS]
            heads = np.concatenate(([0], np.flatnonzero(some[1:] - some[:-1] != 1) + 1))
            starts = some[heads]
            result[low : low + _POSITIONS] = self._look_up(epoch, starts, starts + np.diff(heads, append=len(some)))
        return result

    def _look_up(self, epoch: int, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Return the indices at runs of positions, from starts (R,) to ends (R,): most is done once for a piece of a window."""
        line = self._line(epoch)
        lane, starts, ends = self._deal(starts, ends)
        short, longer = divmod(self._size, self.lanes)
        lane_size = short + (lane < longer)
        cut = _Cut(lane_size, -(-lane_size // self.window))
        run, number = _each(cut.piece(starts), cut.piece(ends - 1))
        lane, cut = lane[run], _Cut(cut.total[run], cut.pieces[run])
        begin, end = cut.begin(number), cut.begin(number + 1)
        inside = np.maximum(starts[run], begin) - begin
        counts = np.minimum(ends[run], end) - begin - inside
        number += lane * -(-(short + 1) // self.window)  # unique over the lanes
        pieces = number, lane * short + np.minimum(lane, longer) + begin, end - begin, inside, counts
        if len(number) <= line.most:
            return line.indices(*pieces)
        slabs = (slice(low, low + line.most) for low in range(0, len(number), line.most))
        return np.concatenate([line.indices(*(array[slab] for array in pieces)) for slab in slabs])

    def _line(self, epoch: int) -> ShardLine:
        lines = cached(self, epoch, threading.local)  # a line is written to when it is asked
        line: ShardLine | None = getattr(lines, "line", None)
        if line is None:
            room = self.lanes * (2 + self.block // self.window)
            line = ShardLine(self.shard_sizes, seed=self.seed, epoch=epoch, width=self.window, room=room)
            lines.line = line
        return line

    def _deal(self, starts: Int64Array, ends: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Cut runs of positions (R,) at the blocks: return each piece's lane, and where it starts and ends there."""
        blocks = self._size // self.lanes // self.block * self.lanes
        dealt = blocks * self.block
        rest = _Cut(self._size - dealt, self.lanes)

        def block_of(positions: Int64Array) -> Int64Array:
            return np.where(positions < dealt, positions // self.block, blocks + rest.piece(positions - dealt))

        def begin_of(block: Int64Array) -> Int64Array:
            begin: Int64Array = np.minimum(block, blocks) * self.block + rest.begin(np.maximum(block - blocks, 0))
            return begin

        run, block = _each(block_of(starts), block_of(ends - 1))
        turn, lane = np.divmod(block, self.lanes)
        first = begin_of(block)
        offset = turn * self.block - first
        return lane, np.maximum(starts[run], first) + offset, np.minimum(ends[run], begin_of(block + 1)) + offset


def shuffled_order(dataset: Any, size: int, *, seed: int, batch_size: int | None) -> Order:
    """Return the order of a Loader with shuffle=True: a ShardOrder where the dataset has shards.

    Raises:
        ValueError: If the dataset's shards don't add up to its size.
    """
    sizes = getattr(dataset, "shard_sizes", None)
    if sizes is None:
        return Shuffled(size, seed=seed)
    order = ShardOrder(sizes, seed=seed, block=batch_size or 1)
    if order.reach != size:
        raise ValueError(
            f"loader: the dataset's shard_sizes add up to {order.reach:,} samples, its length is {size:,}. "
            f"Make them agree, or shuffle it as a whole: order=Shuffled({size})."
        )
    return order


@dataclass(frozen=True, slots=True)
class _Cut:
    """[0, total) cut into pieces that differ by at most one, the longer ones first."""

    total: Any  # an int, or one for each place
    pieces: Any

    def piece(self, places: Int64Array) -> Int64Array:
        """Return the piece of each place (N,)."""
        short, longer = np.divmod(self.total, self.pieces)
        head = longer * (short + 1)
        found: Int64Array = np.where(
            places < head, places // (short + 1), longer + (places - head) // np.maximum(short, 1)
        )
        return found

    def begin(self, pieces: Int64Array) -> Int64Array:
        """Return where pieces (N,) begin."""
        short, longer = np.divmod(self.total, self.pieces)
        begin: Int64Array = pieces * short + np.minimum(pieces, longer)
        return begin


def _each(first: Int64Array, last: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Write ranges (R,) out: return the range of each number, and the numbers from its first to its last."""
    counts = last - first + 1
    row = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(row)) + (first - np.cumsum(counts) + counts)[row]
    return row, number
