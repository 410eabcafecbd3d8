"""An epoch of a ShardOrder: its shards end to end in a new order, and windows of that line, each shuffled."""

import numpy as np

from loaderkit.permutation import permute
from loaderkit.seeding import Int64Array, derive_seed, hash_positions

_WORDS = 1 << 18  # sorted at a time
_ENTRIES = 1 << 23  # of windows held at a time, 8 bytes each


class ShardLine:
    """The shards of an epoch, shuffled and laid end to end as a ring that is opened within one of them.

    Windows are shuffled when they are first asked for, each a true permutation; those that were used last are kept.

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
        self.most = max(1, _ENTRIES // width)  # windows in one call
        self._table = np.empty((min(room, self.most), width), dtype=np.int64)  # the indices in windows
        self._rows: dict[int, int] = {}  # of the table, by window; the one to be given up next comes first

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
        rows = self._rows
        known = {number: rows.pop(number) for number in wanted if number in rows}
        rows.update(known)  # to the end: they are in use
        unknown = [place for place, number in enumerate(wanted) if number not in known]
        for place in unknown:
            full = len(rows) == len(self._table)
            rows[wanted[place]] = rows.pop(next(iter(rows))) if full else len(rows)
        found = np.array([rows[number] for number in wanted], dtype=np.int64)
        together = max(1, _WORDS // self._width)
        for start in range(0, len(unknown), together):
            some = np.array(unknown[start : start + together])
            order = self._permutations(numbers[some], sizes[some])
            members = order.shape[1]
            places = (begins[some][:, None] + np.arange(members)).reshape(-1)
            # What is beyond a window's size is never read.
            places += self._moves.take(np.searchsorted(self._ends, places, side="right"), mode="clip")
            order += np.arange(0, len(places), members)[:, None]
            self._table[found[some], :members] = places.take(order)
        return found

    def _permutations(self, numbers: Int64Array, sizes: Int64Array) -> Int64Array:
        """Sort each window's members by 48 random bits; what is beyond a window's size goes to its row's end."""
        members = np.arange(sizes.max(), dtype=np.int64)
        words = hash_positions((numbers[:, None] * self._width + members).reshape(-1), *self._keys)
        words &= ~np.uint64(0xFFFF)
        table = words.reshape(len(numbers), len(members))
        table[members >= sizes[:, None]] = ~np.uint64(0xFFFF)
        table |= members.astype(np.uint64)
        table.sort(axis=1)
        table &= np.uint64(0xFFFF)
        return table.view(np.int64)
