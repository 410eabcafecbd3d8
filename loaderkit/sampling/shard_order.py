"""A shuffle that keeps reads local: few shards are in use at a time, and each node reads its own part of them."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from loaderkit.sampling.order import Order, Shuffled, cached
from loaderkit.sampling.permutation import permutation
from loaderkit.seeding.keys import derive_seed, hash_positions
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import plain_integer
from loaderkit.system.digests import digest
from loaderkit.system.overrides import own_attribute
from loaderkit.system.types import Array
from loaderkit.system.world import World

MAX_WINDOW = 1 << 16
_POSITIONS = 1 << 14  # looked up at a time, so that temporaries stay in a core's cache
_KEPT_SAMPLES = 1 << 18  # samples of the windows that are kept in memory, 8 bytes each
_SMALL = 16  # windows; without a warning, each node may read all of smaller data
_TOO_MUCH = 1.5  # a node that reads more than this times its part of the data gets a warning
_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F  # of the random generator that shuffles windows: any odd number


class ShardOrder(Order):
    """A new shuffle each epoch that keeps reads local.

    It is a function of (seed, epoch) and its own parameters.
    The seed shuffles the shards into a line and cuts it into `lanes` pieces whose sizes differ by at most one. A lane is
    one such piece, and keeps its shards in all epochs. Each epoch shuffles the shards within each lane, cuts the lane
    into windows of `window` samples, and shuffles each window (a true permutation). Blocks of positions come from the
    lanes in turn; the rest of each lane, at most a block, comes at the end. Nothing is dropped.

    **Nodes.** The ranks share each step's samples by lane, so that neighbouring ranks read neighbouring lanes. If the
    ranks divide the lanes, each lane belongs to one rank for good, and a node's cache serves all epochs. Else two nodes
    read a lane at their border. `nodes_read` tells how much each node reads.

    **Evenly.** The windows of different lanes begin at different times, so that new shards are wanted at an even rate.

    If `block` is the batch size, a batch of one rank mixes the samples of one window. With a block of batch size / m
    it mixes m windows. If neighbours within a shard are alike (sorted data), use a window larger than these stretches, or
    shuffle the data as a whole: `order=Shuffled(len(dataset))`.

    A Loader with `shuffle=True` over shards makes this order with its batch size as the block. The block is part of the
    order and of the state: a run that resumes with another batch size continues the same order.

    Set-up takes O(shards + lanes) an epoch. Memory is 2 MB, or 8 bytes for each sample of about 2 x lanes windows.

    Args:
        shard_sizes: Samples in each shard, in the dataset's order, 0 or more (S,).
        seed: The seed of the shuffle.
        lanes: Places that are read in turn, over all ranks and workers. More lanes suit more nodes, and keep more shards
            in use: see `shards_in_use`. None means 16, 32 from 256 shards on, and 64 from 512 on; fewer if a lane would
            be shorter than a window.
        window: Samples that are shuffled together, at most 65,536. None means a shard's mean size, from 256 to 4,096.
        block: Positions that come from a lane before the next lane's turn.

    Raises:
        ValueError: If a parameter is out of range.

    Examples:
        >>> order = lk.ShardOrder([4, 4, 4], lanes=1, window=6, block=2)
        >>> order.indices(0, 0, order.size(0)) // 4  # the shard of each sample
        array([0, 0, 2, 0, 2, 2, 2, 0, 1, 1, 1, 1])
        >>> lk.ShardOrder([1000] * 640).shards_in_use
        147
    """

    def __init__(
        self,
        shard_sizes: Sequence[int] | Array,
        *,
        seed: int = 0,
        lanes: int | None = None,
        window: int | None = None,
        block: int = 32,
    ) -> None:
        sizes = np.asarray(shard_sizes)
        if sizes.ndim != 1 or (sizes.size and (sizes.dtype.kind not in "iu" or sizes.min() < 0)):
            raise ValueError(
                f"ShardOrder: shard_sizes have shape {sizes.shape} and dtype {sizes.dtype}, "
                "wanted one axis of integers of at least 0, the number of samples in each shard."
            )
        self.shard_sizes = sizes.astype(np.int64)
        filled = self.shard_sizes[self.shard_sizes > 0]
        if window is None:
            window = int(np.clip(filled.mean(), 256, 4096)) if len(filled) else 256
        if lanes is None:
            lanes = 64 if len(filled) >= 512 else 32 if len(filled) >= 256 else 16
            while lanes > 1 and lanes * window > filled.sum():  # a lane must have something to shuffle
                lanes //= 2
        lanes, window, block = map(plain_integer, (lanes, window, block))
        for name, value, most in (("lanes", lanes, None), ("window", window, MAX_WINDOW), ("block", block, None)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most and value > most):
                limit = f"from 1 to {most:,}" if most else "of at least 1"
                raise ValueError(f"ShardOrder: {name} is {value!r}, wanted an integer {limit}.")
        self.seed, self.lanes, self.window, self.block = seed, lanes, window, block
        self._ends = self.shard_sizes.cumsum()
        self._size = int(self.shard_sizes.sum())
        self._turns = _Turns(self._size, lanes, block)
        self._epochs: dict[int, object] = {}

    def _details(self) -> str:
        shards = len(self.shard_sizes)
        return f" in {shards:,} shard{'s' * (shards != 1)}, shuffled in {self.lanes} lane{'s' * (self.lanes != 1)} by {self.window:,} (seed {self.seed})"

    def size(self, epoch: int) -> int:
        return self._size

    @property
    def reach(self) -> int:
        return self._size

    def key(self, epoch: int) -> str:
        shape = f"lanes={self.lanes}, window={self.window}, block={self.block}"
        return f"shards-5({digest(self.shard_sizes)}, seed={self.seed}, {shape})"

    def shard_block(self) -> int:
        return int(self.block)

    def with_block(self, block: int) -> "ShardOrder":
        """Return this order with another block."""
        return ShardOrder(self.shard_sizes, seed=self.seed, lanes=self.lanes, window=self.window, block=block)

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        windows = self._windows(epoch)
        result = np.empty(len(positions), dtype=np.int64)
        for low in range(0, len(positions), _POSITIONS):
            lane, offset = self._turns.places(positions[low : low + _POSITIONS])
            result[low : low + _POSITIONS] = windows.at(lane, offset)
        return result

    def share(self, epoch: int, starts: Int64Array, step: int, low: int, high: int) -> Int64Array:
        """Sort the positions of each step by lane, and return those from `low` to `high`."""
        return self._turns.by_lane(starts, step, low, high)

    def spans(self, epoch: int, ends: Int64Array) -> tuple[Int64Array, Int64Array] | None:
        """Return the first and the last position of the windows that have samples of each shard, each (S,).

        Return None if `ends` are not the ends of this order's shards.
        """
        return self._windows(epoch).spans(self._turns, ends) if np.array_equal(ends, self._ends) else None

    def cost(self, world: World, batch_size: int) -> str:
        shards = np.count_nonzero(self.shard_sizes)
        used = f"about {self.shards_in_use:,} of {shards:,} shards in use"
        lanes = f"{self.lanes} lane{'s' * (self.lanes > 1)} with windows of {self.window:,} samples, {used}"
        if world.nodes is None or world.nodes == 1:
            return lanes
        read = self.nodes_read(world.nodes, world.on_host or 1, batch_size)
        return f"{lanes} over {world.nodes} nodes; a node reads up to {read:.2g} times its part of the data"

    def remark(self, world: World, batch_size: int) -> str | None:
        nodes, on_host = world.nodes or 1, world.on_host or 1
        read = self.nodes_read(nodes, on_host, batch_size)
        if read <= _TOO_MUCH or self._size < _SMALL * self.window:
            return None
        said = f"ShardOrder: with {self.lanes} lanes a node reads up to {read:.2g} times its part of the data on {nodes} nodes."
        for lanes in (2 * self.lanes, 4 * self.lanes, 8 * self.lanes, 16 * self.lanes):
            other = ShardOrder(self.shard_sizes, seed=self.seed, lanes=lanes, window=self.window, block=self.block)
            better = other.nodes_read(nodes, on_host, batch_size)
            if better <= _TOO_MUCH:
                return (
                    f"{said} With {lanes} it is {better:.2g} times, and about {other.shards_in_use:,} shards are in use over "
                    f"all nodes, not {self.shards_in_use:,}. For a new run: order=lk.ShardOrder(dataset.shard_sizes, "
                    f"lanes={lanes}, block={self.block})."
                )
        return said

    @property
    def shards_in_use(self) -> int:
        """About how many shards are read at a time, over all ranks: those with samples in the lanes' open windows."""
        filled = self.shard_sizes[self.shard_sizes > 0]
        if not len(filled):
            return 0
        return min(len(filled), round(self.lanes * (1.3 + self.window / float(filled.mean()))))

    def nodes_read(self, nodes: int, ranks_per_node: int = 1, batch_size: int | None = None) -> float:
        """Return how much of the data a node reads at most, divided by an even part: 1 is best, `nodes` is worst.

        Args:
            nodes: Nodes that train together.
            ranks_per_node: Ranks on each node.
            batch_size: The batch size of each rank; by default the block.

        Examples:
            >>> order = lk.ShardOrder([1000] * 640, block=100)
            >>> order.nodes_read(8, ranks_per_node=8), order.nodes_read(5, ranks_per_node=8)
            (1.0, 1.25)
        """
        part = ranks_per_node * (batch_size or self.block)
        step = nodes * part
        starts = np.arange(0, max(1, self._size - step + 1), step)[:256]
        begin, end = self._turns.cut(starts, step)
        ends = (end - begin).cumsum(1)
        most = 0
        for node in range(nodes):
            read = (ends > node * part) & (ends - (end - begin) < (node + 1) * part)
            most = max(most, int(read.any(0).sum()))
        return most / self.lanes * nodes

    def _windows(self, epoch: int) -> "_Windows":
        threads = cached(self, epoch, threading.local)  # a look-up changes the windows that are kept
        found: _Windows | None = getattr(threads, "windows", None)
        if found is None:
            found = threads.windows = _Windows(self, epoch)
        return found


class _Turns:
    """Converts positions of the order to lanes and offsets within them, and back.

    The lanes take turns. In each round, every lane gives a block of positions. After the last full round, every lane
    gives the rest of its samples. A round visits the lanes in the order of `spread_out`, which spreads any few turns in
    a row evenly over the lanes. So each step takes about as many samples from each node's lanes.
    """

    def __init__(self, size: int, lanes: int, block: int) -> None:
        self.size, self._lanes, self._block = size, lanes, block
        self._lane_of_turn = spread_out(lanes)
        self._turn_of_lane = np.argsort(self._lane_of_turn)
        self._turns = size // lanes // block
        self._dealt = self._turns * lanes * block
        rest = lane_sizes(size, lanes) - self._turns * block
        self._rest_ends = rest[self._lane_of_turn].cumsum()  # (L,), in the order of turns
        self._rest_begins = self._rest_ends - rest[self._lane_of_turn]

    def places(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the lane of each position (N,), and the offset in that lane (N,)."""
        number, offset = np.divmod(positions, self._block)
        number, turn = np.divmod(number, self._lanes)
        offset += number * self._block
        late = np.flatnonzero(positions >= self._dealt)
        if len(late):
            after = positions[late] - self._dealt
            turn[late] = np.searchsorted(self._rest_ends, after, side="right")
            offset[late] = self._turns * self._block + after - self._rest_begins[turn[late]]
        return self._lane_of_turn[turn], offset

    def positions(self, lane: Int64Array, offset: Int64Array) -> Int64Array:
        """Return the position (N,) of each offset in a lane; the inverse of `places`."""
        turn = self._turn_of_lane[lane]
        number, inside = np.divmod(offset, self._block)
        late = self._dealt + self._rest_begins[turn] + offset - self._turns * self._block
        found: Int64Array = np.where(number < self._turns, (number * self._lanes + turn) * self._block + inside, late)
        return found

    def cut(self, starts: Int64Array, step: int) -> tuple[Int64Array, Int64Array]:
        """Return the offset in each lane where each step begins, and where it ends, both (S, L)."""
        return self._below(starts), self._below(starts + step)

    def by_lane(self, starts: Int64Array, step: int, low: int, high: int) -> Int64Array:
        """Sort the positions of each step (S,) by lane, and return `low` to `high` of each (S, high - low)."""
        begin, end = self.cut(starts, step)
        ends = (end - begin).cumsum(1)
        before = ends - (end - begin)  # how many of the step's positions are in earlier lanes
        first = np.clip(before, low, high)
        counts = (np.clip(ends, low, high) - first).reshape(-1)
        base = (begin + first - before).reshape(-1)
        lane = np.tile(np.arange(self._lanes), len(starts))
        filled = np.flatnonzero(counts)
        lane, base, counts = lane[filled], base[filled], counts[filled]
        offset = np.repeat(base - counts.cumsum() + counts, counts) + np.arange(counts.sum())
        return self.positions(np.repeat(lane, counts), offset).reshape(len(starts), high - low)

    def _below(self, positions: Int64Array) -> Int64Array:
        """Return how many samples of each lane come before each position (S, L)."""
        turn = self._turn_of_lane
        number, rest = np.divmod(np.minimum(positions, self._dealt), self._lanes * self._block)
        taken = np.clip(rest[:, None] - turn * self._block, 0, self._block) + (number * self._block)[:, None]
        late = np.maximum(positions - self._dealt, 0)[:, None]
        sizes = (self._rest_ends - self._rest_begins)[turn]
        below: Int64Array = taken + np.clip(late - self._rest_begins[turn], 0, sizes)
        return below


class _Windows:
    """The windows of an epoch's lanes. A window is shuffled when it is first used.

    The result is a public contract: a change of any bit needs a new version in the order's key.
    """

    def __init__(self, order: ShardOrder, epoch: int) -> None:
        self._window = order.window
        sizes = lane_sizes(order.size(epoch), order.lanes)
        self._begins = sizes.cumsum() - sizes  # where each lane begins in the line of shards (L,)
        self._sizes = sizes
        # A lane's first window lacks `lead` samples, so that the lanes' windows begin at different times.
        shift = derive_seed("lead", order.seed, epoch) % order.window
        turns = np.argsort(spread_out(order.lanes))
        self._leads = (turns * order.window // order.lanes + shift) % order.window
        self._windows_a_lane = -(-(int(sizes[0]) + order.window) // order.window)
        self._ends, self._moves = _line_of(order, epoch)
        self._keys = ("window", order.seed, epoch)
        self._room = max(order.lanes * (2 + order.block // order.window), _KEPT_SAMPLES // order.window)
        self._kept: OrderedDict[int, Int64Array] = OrderedDict()  # the one used last is at the end
        self._bits = np.random.PCG64DXSM(0)
        self._random = np.random.RandomState(self._bits)  # its streams are frozen for good (NEP 19)
        self._state = self._bits.state

    def at(self, lane: Int64Array, offset: Int64Array) -> Int64Array:
        """Return the dataset index (N,) at each offset (N,) of a lane (N,)."""
        number, inside = np.divmod(offset + self._leads[lane], self._window)
        inside -= np.where(number == 0, self._leads[lane], 0)
        number += lane * self._windows_a_lane  # no other window has this number
        by_window = np.argsort(number, kind="stable")  # to look up each window once
        ordered = number[by_window]
        heads = np.flatnonzero(np.diff(ordered, prepend=-1))
        result = np.empty(len(offset), dtype=np.int64)
        for window, places in zip(ordered[heads].tolist(), np.split(by_window, heads[1:]), strict=True):
            result[places] = self._shuffled(window)[inside[places]]
        return result

    def spans(self, turns: "_Turns", ends: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the first and the last position at which each shard may be read, each (S,).

        These are the bounds of the windows that have samples of the shard. `ends` (S,) are the ends of the shards'
        indices. For an empty shard the first position is the order's size, and the last is -1.
        """
        begins = np.concatenate((np.zeros(1, dtype=np.int64), self._ends[:-1]))  # of the pieces in the line of shards
        shard = np.searchsorted(ends, begins + self._moves, side="right")
        lane = np.searchsorted(self._begins, begins, side="right") - 1
        lead = self._leads[lane]
        first, last = ((at - self._begins[lane] + lead) // self._window for at in (begins, self._ends - 1))
        firsts, lasts = np.full(len(ends), turns.size), np.full(len(ends), -1)
        np.minimum.at(firsts, shard, turns.positions(lane, np.maximum(first * self._window - lead, 0)))
        window_ends = np.minimum((last + 1) * self._window - lead, self._sizes[lane])
        np.maximum.at(lasts, shard, turns.positions(lane, window_ends - 1))
        return firsts, lasts

    def _shuffled(self, number: int) -> Int64Array:
        """Return the shuffled indices of a window; the windows used last are kept."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        if len(self._kept) == self._room:
            self._kept.popitem(last=False)
        indices = self._kept[number] = self._shuffle(number)
        return indices

    def _shuffle(self, number: int) -> Int64Array:
        lane, window = divmod(number, self._windows_a_lane)
        origin = int(self._begins[lane])
        after_lead = window * self._window - int(self._leads[lane])
        begin = origin + max(after_lead, 0)
        end = origin + min(after_lead + self._window, int(self._sizes[lane]))
        first, last = np.searchsorted(self._ends, (begin, end - 1), side="right")
        ends = np.minimum(self._ends[first : last + 1], end)
        indices: Int64Array = np.repeat(self._moves[first : last + 1], np.diff(ends, prepend=begin))
        indices += np.arange(begin, end)
        high, low = hash_positions(np.array([2 * number, 2 * number + 1]), *self._keys).tolist()
        # Setting the generator's state takes a quarter of the time of making a new one.
        self._bits.state = self._state | {"state": {"state": high << 64 | low, "inc": _INCREMENT}}
        self._random.shuffle(indices)
        return indices


def _line_of(order: ShardOrder, epoch: int) -> tuple[Int64Array, Int64Array]:
    """Return the end of each piece of an epoch's line (P,), and what to add to its positions to get dataset indices (P,).

    A piece is a shard, or a part of a shard that lies in two lanes or fills more than a quarter of its lane. So each lane
    has some pieces to shuffle, even if there are few shards.
    """
    sizes = order.shard_sizes
    shuffled = permutation(len(sizes), derive_seed("shards", order.seed), 0)(np.arange(len(sizes)))
    shard_ends = sizes[shuffled].cumsum()
    lane_ends = lane_sizes(order.size(epoch), order.lanes).cumsum()
    ends = np.union1d(shard_ends, lane_ends)
    lengths = np.diff(ends, prepend=0)
    parts = -(-lengths // max(2 * order.window, order.size(epoch) // order.lanes // 4))
    whole = np.repeat(np.arange(len(ends)), parts)
    part = np.arange(len(whole)) - (parts.cumsum() - parts)[whole]
    ends = (ends - lengths)[whole] + (part + 1) * lengths[whole] // parts[whole]
    lengths = np.diff(ends, prepend=0)
    shard = np.searchsorted(shard_ends, ends)  # the first that ends there or later is not empty
    starts = (sizes.cumsum() - sizes)[shuffled][shard] + ends - lengths - (shard_ends[shard] - sizes[shuffled][shard])
    lane = np.searchsorted(lane_ends, ends)
    pieces = np.lexsort((hash_positions(np.arange(len(ends)), "piece", order.seed, epoch), lane))
    line_ends = lengths[pieces].cumsum()
    return line_ends, starts[pieces] - (line_ends - lengths[pieces])


def lane_sizes(size: int, lanes: int) -> Int64Array:
    """Return the lanes' sizes (L,), which differ by at most one."""
    short, longer = divmod(size, lanes)
    return short + (np.arange(lanes) < longer)


def spread_out(count: int) -> Int64Array:
    """Return 0 to count - 1 (C,) so that any few in a row are spread evenly (van der Corput's sequence).

    Examples:
        >>> from loaderkit.sampling.shard_order import spread_out
        >>> spread_out(8)
        array([0, 4, 2, 6, 1, 5, 3, 7])
    """
    numbers = np.zeros(1, dtype=np.int64)
    while len(numbers) < count:
        numbers = np.concatenate((2 * numbers, 2 * numbers + 1))
    return numbers[numbers < count]


def shuffled_order(dataset: object, size: int, *, seed: int, batch_size: int | None) -> Order:
    """Return the order of a Loader with shuffle=True: the dataset's own, a ShardOrder if it has `shard_sizes`, else Shuffled.

    A dataset has an order of its own if it has `epoch_order(seed)`. The batch size is the block of a ShardOrder.

    Raises:
        ValueError: If the dataset's shards don't add up to its size.
    """
    epoch_order = own_attribute(dataset, "epoch_order")
    if callable(epoch_order):
        found: Order = epoch_order(seed)
        return found.with_block(batch_size or 1) if isinstance(found, ShardOrder) else found
    sizes = own_attribute(dataset, "shard_sizes")
    if sizes is None:
        return Shuffled(size, seed=seed)
    order = ShardOrder(sizes, seed=seed, block=batch_size or 1)
    if order.reach != size:
        raise ValueError(
            f"loader: the dataset's shard_sizes add up to {order.reach:,} samples, its length is {size:,}. "
            f"Make them agree, or shuffle it as a whole: order=Shuffled({size})."
        )
    return order
