"""A shuffle that reads shards almost in order: few shards are open at a time, and few workers read each."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.order import Order, Shuffled, cached, digest
from loaderkit.sampling.permutation import permutation
from loaderkit.seeding.keys import derive_seed, hash_positions
from loaderkit.system.arrays import Int64Array

MAX_WINDOW = 1 << 16
_POSITIONS = 1 << 14  # looked up at a time, so that temporaries stay in a core's cache
_KEPT_SAMPLES = 1 << 18  # of the windows that are kept, 8 bytes each
_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F  # of the windows' generator: any odd number


class ShardOrder(Order):
    """A new shuffle each epoch that keeps reads local: a function of (seed, epoch) and its own parameters.

    The order shuffles the shards, joins them to a ring and opens the ring at a random position. It cuts the result into
    `lanes` pieces whose sizes differ by at most one. A lane is one such piece, read in parallel with the others. Each
    lane is cut into equal windows of at most `window` samples, and each window is shuffled (a true permutation). Blocks
    of positions come from the lanes in turn; the rest of each lane, less than a block, comes at the end. Nothing is
    dropped. Set-up takes O(shards + lanes) an epoch. Memory is 2 MB, or 8 bytes for each sample of about 2 x lanes
    windows.

    If `block` is the batch size and `lanes` a multiple of ranks x workers, one worker reads each lane. Then one worker
    opens a shard, or two if a lane ends in it. A batch mixes the samples of one window. With a block of batch size / m
    it mixes m windows, and `lanes` should be a multiple of m x ranks x workers. If a block is larger than the batch,
    workers share each lane.

    A Loader with `shuffle=True` over shards makes this order with its batch size as the block. The block is part of the
    order and of the state: a run that resumes with another batch size continues the same order.

    If neighbours within a shard are alike (sorted data), use a window larger than these stretches, or shuffle the data as
    a whole: `order=Shuffled(len(dataset))`.

    Args:
        shard_sizes: Samples in each shard, in the dataset's order, 0 or more (S,).
        seed: Of the shuffle.
        lanes: Places that are read in turn. About lanes x (1 + window / samples in a shard) shards are in use at a time,
            over all ranks and workers.
        window: Samples that are shuffled together, at most 65,536.
        block: Positions that come from a lane before the next lane's turn.

    Raises:
        ValueError: If a parameter is out of range.

    Examples:
        >>> order = lk.ShardOrder([4, 4, 4], lanes=1, window=2, block=2)
        >>> order.indices(0, 0, order.size(0)) // 4  # the shard of each sample
        array([2, 2, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2])
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
        shape = f"lanes={self.lanes}, window={self.window}, block={self.block}"
        return f"shards-4({digest(self.shard_sizes)}, seed={self.seed}, {shape})"

    def with_block(self, block: int) -> "ShardOrder":
        """Return this order with another block."""
        return ShardOrder(self.shard_sizes, seed=self.seed, lanes=self.lanes, window=self.window, block=block)

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        result = np.empty(len(positions), dtype=np.int64)
        for low in range(0, len(positions), _POSITIONS):
            some = positions[low : low + _POSITIONS]
            heads = np.concatenate(([0], np.flatnonzero(some[1:] - some[:-1] != 1) + 1))
            starts = some[heads]
            ends = starts + np.diff(heads, append=len(some))
            self._look_up(epoch, starts, ends, result[low : low + _POSITIONS])
        return result

    def _look_up(self, epoch: int, starts: Int64Array, ends: Int64Array, out: Int64Array) -> None:
        """Write the indices at runs of positions, from starts (R,) to ends (R,), one run after another."""
        lane, starts, ends = self._deal(starts, ends)
        short, longer = divmod(self._size, self.lanes)
        lane_size = short + (lane < longer)
        windows = _EvenPieces(lane_size, -(-lane_size // self.window))
        run, number = _ranges(windows.piece(starts), windows.piece(ends - 1))
        lane, windows = lane[run], _EvenPieces(windows.total[run], windows.pieces[run])
        begin, end = windows.begin(number), windows.begin(number + 1)
        inside = np.maximum(starts[run], begin) - begin
        counts = np.minimum(ends[run], end) - begin - inside
        number += lane * -(-(short + 1) // self.window)  # unique over the lanes
        begin_in_ring = lane * short + np.minimum(lane, longer) + begin
        # By window, so that each is needed once, however the positions lie.
        by_window = np.argsort(number, kind="stable")
        each = counts[by_window]
        stops = np.cumsum(each)
        offsets = np.arange(len(out))
        source = np.repeat(inside[by_window] - stops + each, each) + offsets
        target = np.repeat((np.cumsum(counts) - counts)[by_window] - stops + each, each) + offsets
        heads = np.flatnonzero(np.diff(number[by_window], prepend=-1))
        first = by_window[heads]
        stops = np.append(stops[heads[1:] - 1], len(out))
        kept, low = self._shuffled_windows(epoch), 0
        pieces = np.stack((number[first], begin_in_ring[first], (end - begin)[first], stops), axis=1)
        for window, start, size, high in pieces.tolist():
            out[target[low:high]] = kept.window(window, start, size)[source[low:high]]
            low = high

    def _shuffled_windows(self, epoch: int) -> "_ShuffledWindows":
        threads = cached(self, epoch, threading.local)  # a look-up changes the windows that are kept
        found: _ShuffledWindows | None = getattr(threads, "windows", None)
        if found is None:
            room = max(self.lanes * (2 + self.block // self.window), _KEPT_SAMPLES // self.window)
            found = threads.windows = _ShuffledWindows(self.shard_sizes, seed=self.seed, epoch=epoch, room=room)
        return found

    def _deal(self, starts: Int64Array, ends: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Cut runs of positions (R,) at the blocks. Return each piece's lane, and its start and end in that lane."""
        blocks = self._size // self.lanes // self.block * self.lanes
        dealt = blocks * self.block
        rest = _EvenPieces(self._size - dealt, self.lanes)

        def block_of(positions: Int64Array) -> Int64Array:
            return np.where(positions < dealt, positions // self.block, blocks + rest.piece(positions - dealt))

        def begin_of(block: Int64Array) -> Int64Array:
            begin: Int64Array = np.minimum(block, blocks) * self.block + rest.begin(np.maximum(block - blocks, 0))
            return begin

        run, block = _ranges(block_of(starts), block_of(ends - 1))
        turn, lane = np.divmod(block, self.lanes)
        first = begin_of(block)
        offset = turn * self.block - first
        return lane, np.maximum(starts[run], first) + offset, np.minimum(ends[run], begin_of(block + 1)) + offset


class _ShuffledWindows:
    """The shards of an epoch as a ring in shuffled order, and windows of that ring, each a true permutation.

    It shuffles a window when it is first asked for, and keeps those used last. The result is a public contract: a
    change of any bit needs a new version in the order's key. At most `room` windows are kept.
    """

    def __init__(self, sizes: Int64Array, *, seed: int, epoch: int, room: int) -> None:
        order = permutation(len(sizes), derive_seed("shards", seed), epoch)(np.arange(len(sizes)))
        ends = np.cumsum(sizes[order])
        moves = (np.cumsum(sizes) - sizes)[order] - (ends - sizes[order])
        size = int(ends[-1])
        turn = derive_seed("ring", seed, epoch) % size
        opened = int(np.searchsorted(ends, turn, side="right"))
        # (S + 1,): the shard in which the ring is opened is there twice.
        self._ends = np.concatenate((ends[opened:], ends[:opened] + size, [turn + size])) - turn
        self._moves = np.concatenate((moves[opened:], moves[: opened + 1] - size)) + turn  # from ring to index
        self._keys, self._room = ("window", seed, epoch), room
        self._kept: OrderedDict[int, Int64Array] = OrderedDict()  # the one used last is at the end
        self._bits = np.random.PCG64DXSM(0)
        self._random = np.random.RandomState(self._bits)  # its streams are frozen for good (NEP 19)
        self._state = self._bits.state

    def window(self, number: int, begin: int, size: int) -> Int64Array:
        """Return the shuffled indices (size,) of the window at `begin` in the ring. No other window has its number."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        if len(self._kept) == self._room:
            self._kept.popitem(last=False)
        first, last = np.searchsorted(self._ends, (begin, begin + size - 1), side="right")
        ends = np.minimum(self._ends[first : last + 1], begin + size)
        indices: Int64Array = np.repeat(self._moves[first : last + 1], np.diff(ends, prepend=begin))
        indices += np.arange(begin, begin + size)
        if size > 1:
            high, low = hash_positions(np.array([2 * number, 2 * number + 1]), *self._keys).tolist()
            # To set the whole state takes a quarter of the time of a new generator.
            self._bits.state = self._state | {"state": {"state": high << 64 | low, "inc": _INCREMENT}}
            self._random.shuffle(indices)
        self._kept[number] = indices
        return indices


def shuffled_order(dataset: Any, size: int, *, seed: int, batch_size: int | None) -> Order:
    """Return the order of a Loader with shuffle=True: a ShardOrder if the dataset has `shard_sizes`, else Shuffled.

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
class _EvenPieces:
    """The range [0, total) in pieces whose sizes differ by at most one, the longer ones first."""

    total: Any  # an int, or one for each position
    pieces: Any

    def piece(self, positions: Int64Array) -> Int64Array:
        """Return the piece of each position (N,)."""
        short, longer = np.divmod(self.total, self.pieces)
        head = longer * (short + 1)
        found: Int64Array = np.where(
            positions < head, positions // (short + 1), longer + (positions - head) // np.maximum(short, 1)
        )
        return found

    def begin(self, pieces: Int64Array) -> Int64Array:
        """Return the start of each piece (N,)."""
        short, longer = np.divmod(self.total, self.pieces)
        begin: Int64Array = pieces * short + np.minimum(pieces, longer)
        return begin


def _ranges(first: Int64Array, last: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Write out ranges from first (R,) to last (R,), both included: return each number's range, and the numbers."""
    counts = last - first + 1
    row = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(row)) + (first - np.cumsum(counts) + counts)[row]
    return row, number
