"""Rows of a fixed length, each filled with several samples."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.by_length.checks import TAILS, check_count, check_longest, check_too_long, small_window, too_few
from loaderkit.sampling.by_length.line import Room
from loaderkit.sampling.by_length.segment import Cut, Geometry
from loaderkit.sampling.by_length.window_plan import WindowPlan
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import Tail
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Int64Array


class PackPlan(WindowPlan):
    """Batches of rows that samples are packed into, by best fit decreasing within each window.

    The collate is called with a list of rows, each a list of samples: see `loaderkit.PackCollate`. Over 1,000 samples
    about 0.5 % of a row stays empty, over 10,000 about 0.15 %. A row has the same cost as any other, so that ranks are in
    step whatever they hold. `len()` plans the whole epoch.

    Args:
        lengths: Of each sample of the dataset, in tokens (N,).
        row_length: Tokens of a row.
        batch_size: Rows a batch and rank, at most.
        window: How many samples are packed together: half of them, from 1,024 to 32,768, by default.
        too_long: A sample longer than a row: "error" refuses it when the plan is made, "drop" leaves it out of each epoch.
        shuffle: Whether samples and steps come in a new order each epoch.
        seed: Of that.
        order: Another order of the samples, in place of `shuffle`.
        tail: At an epoch's end, as for a Loader, counted in rows.

    Raises:
        ValueError: If a number is out of range, a sample is too long, or the order does not fit the lengths.
    """

    alike = False  # long ones leave room that short ones fill

    def __init__(
        self,
        lengths: npt.ArrayLike,
        row_length: int,
        batch_size: int = 1,
        *,
        window: int | None = None,
        too_long: Literal["error", "drop"] = "error",
        shuffle: bool = True,
        seed: int = 0,
        order: Order | None = None,
        tail: Tail = "keep",
    ) -> None:
        super().__init__(lengths, window=window, shuffle=shuffle, seed=seed, order=order, tail=tail)
        check_count(row_length, "PackPlan", "row_length")
        check_count(batch_size, "PackPlan", "batch_size")
        self.row_length, self.batch_size = int(row_length), int(batch_size)
        self.too_long = check_too_long(too_long, "PackPlan", ("error", "drop"))
        if too_long == "error":
            way_out = "or leave such samples out: too_long='drop'"
            check_longest(self.lengths, self.row_length, "PackPlan", "row_length", way_out)

    @property
    def step(self) -> int:
        return self.world.size * self.batch_size

    @property
    def geometry(self) -> Geometry:
        return self.world.size, self.batch_size, TAILS.index(self.tail), self.row_length

    def remark(self) -> str | None:
        needed = self.step * self.row_length / max(1.0, float(self.lengths.mean()))
        return small_window("PackPlan", self.window, len(self.lengths), needed, self.world.size)

    def room(self, lengths: Int64Array, geometry: Geometry) -> Room:
        ranks, batch_size, _, row_length = geometry
        most = ranks * batch_size * row_length
        return Room(np.where(lengths > row_length, 0, np.maximum(lengths, 1)), most, most)

    def cut(self, lengths: Int64Array, geometry: Geometry, *, last: bool) -> Cut | None:
        ranks, batch_size, tail, row_length = geometry
        policy = TAILS[tail] if last else "keep"
        numbers, rows = pack(lengths, row_length)
        full, rest = divmod(rows, ranks * batch_size)
        steps = full + (rest > 0 and policy != "drop")
        if policy == "keep":
            rows = _split_rows(numbers, rows, steps * ranks)
            if rows < steps * ranks and last:
                raise too_few(len(lengths), ranks)
            if rows < max(1, steps * ranks):
                return None if not last else Cut(np.empty(0, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
        # Decreasing lengths fill the first rows with few long samples: mixed, the batches are alike.
        wanted = np.argsort(hash_positions(np.arange(rows, dtype=np.int64), "rows"), kind="stable")
        if policy != "keep":
            wanted = wanted[np.arange(steps * ranks * batch_size) % max(1, rows)]
        sizes = np.bincount(numbers[numbers >= 0], minlength=rows)
        members = np.split(np.argsort(numbers, kind="stable")[len(lengths) - int(sizes.sum()) :], np.cumsum(sizes)[:-1])
        places = np.concatenate([members[row] for row in wanted.tolist()] or [np.empty(0, np.int64)])
        ends = np.concatenate([[0], np.cumsum(sizes[wanted])])
        batches = steps * ranks
        return Cut(places, ends[np.arange(batches + 1) * len(wanted) // max(1, batches)], ends)

    def tokens_of(self, lengths: Int64Array, cut: Cut) -> Int64Array:
        rows = np.searchsorted(cut.rows if cut.rows is not None else cut.bounds, cut.bounds)
        return np.diff(rows) * self.row_length


def pack(lengths: Int64Array, row_length: int) -> tuple[npt.NDArray[np.int64], int]:
    """Put samples into rows by best fit decreasing: the longest first, each where it leaves the least room.

    Johnson, "Near-optimal bin packing algorithms" (MIT, 1973). Which room is the smallest that suffices is read off the
    bits of one integer.

    Args:
        lengths: Of samples (N,).
        row_length: Tokens of a row.

    Returns:
        The row of each sample (N,), -1 where it is longer than a row; and the number of rows.
    """
    numbers = np.full(len(lengths), -1, dtype=np.int64)
    rooms: list[list[int]] = [[] for _ in range(row_length + 1)]  # rows by the room that they have left
    some, rows = 0, 0  # bit r: there are rows with room r
    chosen: list[int] = []
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] <= row_length]
    for length in np.maximum(lengths[order], 1).tolist():
        above = some >> length
        if above:
            room = length + (above & -above).bit_length() - 1
            row = rooms[room].pop()
            if not rooms[room]:
                some ^= 1 << room
        else:
            room, row = row_length, rows
            rows += 1
        room -= length
        if room:
            if not rooms[room]:
                some |= 1 << room
            rooms[room].append(row)
        chosen.append(row)
    numbers[order] = chosen
    return numbers, rows


def _split_rows(numbers: Int64Array, rows: int, wanted: int) -> int:
    """Halve the rows with most samples, in place, until there are so many; return how many there are in the end."""
    while rows < wanted:
        sizes = np.bincount(numbers[numbers >= 0], minlength=rows)
        if not sizes.size or sizes.max() < 2:
            break
        members = np.flatnonzero(numbers == int(sizes.argmax()))
        numbers[members[len(members) // 2 :]] = rows
        rows += 1
    return rows
