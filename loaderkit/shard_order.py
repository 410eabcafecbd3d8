"""A shuffle that reads shards almost in order: few are open at a time, and each by few workers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderkit.order import Order, Shuffled, cached, digest
from loaderkit.permutation import permute
from loaderkit.seeding import Int64Array, derive_seed, hash_positions

MAX_WINDOW = 1 << 16
_POSITIONS = 1 << 15  # looked up at a time: the temporaries stay in a core's cache
_WORDS = 1 << 18  # sorted at a time
_ENTRIES = 1 << 25  # of shuffled windows held at a time, 2 bytes each


class ShardOrder(Order):
    """A new shuffle each epoch that keeps reads local: a function of (seed, epoch) and its own parameters.

    The shards are shuffled, laid end to end as a ring that is opened at a random
    place, and cut into `lanes` pieces whose sizes differ by at most one. Each
    lane is cut into equal windows of at most `window` samples, and each window
    is shuffled: a true permutation. Blocks of positions are dealt from the lanes
    in turn; what is left of each lane, less than a block, comes at the end.
    Nothing is dropped. Set-up is O(shards + lanes) an epoch; memory is 2 bytes
    for each sample of the windows last used.

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
        return f"shards-2({digest(self.shard_sizes)}, seed={self.seed}, {cut})"

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
        line: _Line = cached(self, epoch, lambda: _Line.make(self.shard_sizes, self.seed, epoch, self.window))
        result = np.empty(len(positions), dtype=np.int64)
        for start in range(0, len(positions), _POSITIONS):
            result[start : start + _POSITIONS] = self._look_up(line, positions[start : start + _POSITIONS])
        return result

    def _look_up(self, line: "_Line", positions: Int64Array) -> Int64Array:
        lane, offset = self._deal(positions)
        short, longer = divmod(self._size, self.lanes)
        lane_size = short + (lane < longer)
        number, inside, size = _cut(offset, lane_size, -(-lane_size // self.window))
        number += lane * -(-(short + 1) // self.window)  # unique over the lanes
        places = lane * short + np.minimum(lane, longer) + offset - inside
        places += line.windows.shuffle(number, size, inside)
        return line.indices(places)

    def _deal(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return each position's lane and its offset there."""
        rounds = self._size // self.lanes // self.block
        turn, inside = np.divmod(positions, self.lanes * self.block)
        lane, offset = np.divmod(inside, self.block)
        offset += turn * self.block
        dealt = rounds * self.lanes * self.block
        late = np.flatnonzero(positions >= dealt)
        if late.size:
            lane[late], offset[late], _ = _cut(positions[late] - dealt, self._size - dealt, self.lanes)
            offset[late] += rounds * self.block
        return lane, offset


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
class _Line:
    """An epoch's shards, shuffled and laid end to end."""

    ends: Int64Array  # (S,), on the line
    moves: Int64Array  # (S,), from a place on the line to an index
    turn: int  # where the ring is opened
    windows: "_Windows"

    @classmethod
    def make(cls, sizes: Int64Array, seed: int, epoch: int, window: int) -> "_Line":
        every = np.arange(len(sizes), dtype=np.int64)
        order = permute(every, len(sizes), derive_seed("shards", seed), epoch, {}) if len(sizes) else every
        ends = np.cumsum(sizes[order])
        starts = np.cumsum(sizes) - sizes
        turn = derive_seed("ring", seed, epoch) % max(1, int(sizes.sum()))
        return cls(ends, starts[order] - (ends - sizes[order]), turn, _Windows(window, ("window", seed, epoch)))

    def indices(self, places: Int64Array) -> Int64Array:
        places += self.turn
        size = self.ends[-1]
        places -= size * (places >= size)
        places += np.take(self.moves, np.searchsorted(self.ends, places, side="right"))
        return places


@dataclass(slots=True)
class _Windows:
    """Permutations of windows; those of the last call are kept."""

    width: int
    keys: tuple[int | str, ...]
    numbers: Int64Array = field(init=False)
    table: npt.NDArray[np.uint16] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers, self.table = np.empty(0, dtype=np.int64), np.empty((0, self.width), dtype=np.uint16)

    def shuffle(self, numbers: Int64Array, sizes: Int64Array, inside: Int64Array) -> Int64Array:
        """Return where window numbers (N,) of the given sizes (N,) send their members (N,)."""
        # Windows come in runs: only one of each run takes part in the sorting.
        heads = np.flatnonzero(np.diff(numbers, prepend=-1))
        unique, first, runs = np.unique(numbers[heads], return_index=True, return_inverse=True)
        rows = np.repeat(runs, np.diff(heads, append=len(numbers)))
        sizes = sizes[heads[first]]
        result = np.empty(len(numbers), dtype=np.int64)
        most = max(1, _ENTRIES // self.width)
        for low in range(0, len(unique), most):
            self._keep(unique[low : low + most], sizes[low : low + most])
            if len(unique) <= most:
                result[:] = self.table[rows, inside]
            else:
                here = np.flatnonzero((rows >= low) & (rows < low + most))
                result[here] = self.table[rows[here] - low, inside[here]]
        return result

    def _keep(self, numbers: Int64Array, sizes: Int64Array) -> None:
        if np.array_equal(numbers, self.numbers):
            return
        table = np.empty((len(numbers), self.width), dtype=np.uint16)
        known = np.isin(numbers, self.numbers, assume_unique=True)
        table[known] = self.table[np.searchsorted(self.numbers, numbers[known])]
        unknown = np.flatnonzero(~known)
        together = max(1, _WORDS // self.width)
        for start in range(0, len(unknown), together):
            rows = unknown[start : start + together]
            found = self._permutations(numbers[rows], sizes[rows])
            table[rows, : found.shape[1]] = found
        self.numbers, self.table = numbers, table

    def _permutations(self, numbers: Int64Array, sizes: Int64Array) -> npt.NDArray[np.uint16]:
        """Sort each window's members by 48 random bits; what is beyond a window's size goes to its row's end."""
        members = np.arange(sizes.max(), dtype=np.int64)
        words = hash_positions((numbers[:, None] * self.width + members).reshape(-1), *self.keys)
        words &= ~np.uint64(0xFFFF)
        table = words.reshape(len(numbers), len(members))
        table |= members.astype(np.uint64)
        table[members >= sizes[:, None]] = np.iinfo(np.uint64).max
        table.sort(axis=1)
        return table.astype(np.uint16)


def _cut(places: Int64Array, total: Any, pieces: Any) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Cut [0, total) into pieces that differ by at most one: return each place's piece, its place in it, its size."""
    short, longer = np.divmod(total, pieces)
    head = longer * (short + 1)
    piece = np.where(places < head, places // (short + 1), longer + (places - head) // np.maximum(short, 1))
    inside = places - piece * short - np.minimum(piece, longer)
    return piece, inside, short + (piece < longer)
