"""An epoch of a ShardOrder: its shards end to end in a new order, and windows of that line, each shuffled."""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from loaderkit.sampling.permutation import permute
from loaderkit.seeding.keys import derive_seed, hash_positions
from loaderkit.system.arrays import Int64Array

_PLACES = 1 << 16  # shuffled at a time
_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F  # of the generator, any odd number
_ENTRIES = 1 << 23  # of windows held at a time, 8 bytes each


class ShardLine:
    """The shards of an epoch, shuffled and laid end to end as a ring that is opened within one of them.

    Windows are shuffled when they are first asked for, each a true permutation; those that were used last are kept. All of
    this is a public contract: changing a bit of it needs a new version in the order's key.

    Args:
        sizes: Samples in each shard (S,), at least one in all.
        seed: With `epoch`, what it is a function of.
        epoch: See seed.
        width: Samples of the largest window, at most 2**16.
        room: Windows that are kept.
    """

    def __init__(self, sizes: Int64Array, *, seed: int, epoch: int, width: int, room: int) -> None:
        order = permute(np.arange(len(sizes), dtype=np.int64), len(sizes), derive_seed("shards", seed), epoch, {})
        ends = np.cumsum(sizes[order])
        moves = (np.cumsum(sizes) - sizes)[order] - (ends - sizes[order])
        size = int(ends[-1])
        turn = derive_seed("ring", seed, epoch) % size
        cut = int(np.searchsorted(ends, turn, side="right"))
        # (S + 1,): the shard that is cut open is there twice.
        self._ends = np.concatenate((ends[cut:], ends[:cut] + size, [turn + size])) - turn
        self._moves = np.concatenate((moves[cut:], moves[: cut + 1] - size)) + turn  # from a place to an index
        self._width, self._keys = width, ("window", seed, epoch)
        # The streams of a RandomState are frozen for good (NEP 19).
        self._bits = np.random.PCG64DXSM(0)
        self._shuffle: Callable[[Int64Array], None] = np.random.RandomState(self._bits).shuffle
        self._state = self._bits.state
        self.most = max(1, _ENTRIES // width)  # windows in one call
        self._table = np.empty((min(room, self.most), width), dtype=np.int64)  # the indices in windows
        # Of the table, by window; the one to be given up next comes first.
        self._rows: OrderedDict[int, int] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """Memory that it takes."""
        return self._ends.nbytes + self._moves.nbytes + self._table.nbytes

    def indices(
        self, numbers: Int64Array, begins: Int64Array, sizes: Int64Array, inside: Int64Array, counts: Int64Array
    ) -> Int64Array:
        """Return the indices in pieces (P,) of windows, one piece after another; P is at most `most`.

        Args:
            numbers: The window of each piece; any number that no other window has.
            begins: Where that window begins on the line.
            sizes: Samples in that window.
            inside: Where the piece begins in the shuffled window.
            counts: Samples of the piece.
        """
        unique, first, which = np.unique(numbers, return_index=True, return_inverse=True)
        rows = self._rows_of(unique, begins[first], sizes[first])[which]
        entries = np.repeat(rows * self._width + inside - np.cumsum(counts) + counts, counts)
        entries += np.arange(len(entries))
        return self._table.reshape(-1).take(entries)

    def _rows_of(self, numbers: Int64Array, begins: Int64Array, sizes: Int64Array) -> Int64Array:
        """Return the rows (W,) of windows in the table, where those are made that it lacks."""
        wanted = numbers.tolist()
        if len(wanted) > len(self._table):
            table = np.empty((len(wanted), self._width), dtype=np.int64)
            table[: len(self._table)] = self._table
            self._table = table
        rows, made = self._rows, []
        for place, number in enumerate(wanted):
            if number in rows:
                rows.move_to_end(number)
            else:
                made.append(place)
        for place in made:
            full = len(rows) == len(self._table)
            rows[wanted[place]] = rows.popitem(last=False)[1] if full else len(rows)
        found = np.array([rows[number] for number in wanted], dtype=np.int64)
        together = max(1, _PLACES // self._width)
        for start in range(0, len(made), together):
            some = np.array(made[start : start + together])
            indices = self._shuffled(numbers[some], begins[some], sizes[some])
            self._table[found[some], : indices.shape[1]] = indices
        return found

    def _shuffled(self, numbers: Int64Array, begins: Int64Array, sizes: Int64Array) -> Int64Array:
        """Return the indices in windows (W, M), shuffled (Fisher and Yates); behind a window's size is what means nothing."""
        steps = np.arange(sizes.max())
        first, last = (np.searchsorted(self._ends, ends, side="right") for ends in (begins, begins + sizes - 1))
        places: Int64Array = (begins + self._moves[first])[:, None] + steps
        mixed = np.flatnonzero(first != last)  # few where shards are large
        if mixed.size:
            line = begins[mixed, None] + steps
            shards = np.searchsorted(self._ends, line.reshape(-1), side="right").reshape(line.shape)
            places[mixed] = line + self._moves.take(shards, mode="clip")
        words = hash_positions((2 * numbers[:, None] + np.arange(2)).reshape(-1), *self._keys).tolist()
        for row, size in enumerate(sizes.tolist()):
            if size > 1:
                # Setting the whole state takes a quarter of the time of making a generator from a seed.
                state = words[2 * row] << 64 | words[2 * row + 1]
                self._bits.state = self._state | {"state": {"state": state, "inc": _INCREMENT}}
                self._shuffle(places[row, :size])
        return places
