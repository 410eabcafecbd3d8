"""Rows of a fixed length, each filled with several samples."""

import bisect
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from loaderkit.sampling.by_length.balance import Cost, costs_of, deal_rows, sums
from loaderkit.sampling.by_length.checks import TAILS, as_lengths, check_longest, small_window, too_few
from loaderkit.sampling.by_length.pieces import piece_lengths
from loaderkit.sampling.by_length.segments import BATCH, RANKS, SIZE, Arrangement, Geometry
from loaderkit.sampling.by_length.window_plan import WindowPlan
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import Cuts, Tail
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Float64Array, Int64Array
from loaderkit.system.checks import check_choice, check_integer
from loaderkit.system.state import Rule, integers


class PackPlan(WindowPlan):
    """Batches of rows of a fixed length, each packed with several samples.

    The plan packs each window by best fit decreasing. The collate gets a list of rows, each a list of samples: see
    `loaderkit.PackCollate`. With windows of 1,000 samples about 0.5 % of a row stays empty, with 10,000 about 0.15 %.
    All rows have as many tokens, and a model that attends over the whole row takes equally long for each. With attention within
    documents, a row of one long document costs more than one of many short ones, and ranks wait for each other. Then give
    `balance=lk.AttentionCost(hidden_size=...)`. `len()` plans the whole epoch.

    Args:
        lengths: Length of each sample of the dataset, in tokens (N,).
        row_length: Tokens of a row.
        batch_size: The most rows of a batch, for each rank.
        window: Samples that are packed together; by default half of all samples, from 1,024 to 32,768.
        too_long: What happens to a sample longer than a row: "error" refuses it when the plan is made, "drop" leaves
            it out, "split" cuts it. Then the samples of the plan are the pieces of a `PieceDataset`, which the Loader makes.
            Shorter samples stay whole, and each token comes once an epoch.
        shuffle: Whether samples and steps come in a new order each epoch.
        seed: The seed of the shuffle.
        order: Another order of the samples, instead of `shuffle`.
        tail: What happens to an epoch's last rows, as for a Loader.
        balance: What a sample costs by its length: `lk.AttentionCost(hidden_size=...)`, or a function from lengths (N,) to
            costs (N,). Then the batches of one step cost about the same on all ranks, and so do the ranks' sums over the steps of
            a gradient accumulation.

    Raises:
        ValueError: If a number is out of range, a sample is too long, or the order does not fit the lengths.

    Examples:
        >>> samples = [[1] * 3, [2] * 5, [3] * 2, [4] * 6]
        >>> plan = lk.PackPlan([3, 5, 2, 6], row_length=8, batch_size=2)
        >>> for batch in lk.Loader(samples, plan=plan, collate_fn=list):
        ...     print([sum(len(sample) for sample in row) for row in batch])
        [8, 8]
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "ranks": RANKS,
        "batch size": BATCH,
        "tail": integers(0, len(TAILS) - 1),
        "row_length": SIZE,
    }

    def __init__(
        self,
        lengths: "npt.ArrayLike",
        row_length: int,
        batch_size: int = 1,
        *,
        window: int | None = None,
        too_long: Literal["error", "drop", "split"] = "error",
        shuffle: bool = True,
        seed: int = 0,
        order: Order | None = None,
        tail: Tail = "keep",
        balance: Cost | None = None,
    ) -> None:
        check_integer("PackPlan", "row_length", row_length, 1)
        check_integer("PackPlan", "batch_size", batch_size, 1)
        check_choice("PackPlan", "too_long", too_long, ("error", "drop", "split"))
        self.document_lengths = as_lengths(lengths, "PackPlan") if too_long == "split" else None
        if self.document_lengths is not None:
            if order is not None:
                raise ValueError(
                    "PackPlan: order= and too_long='split' are both given, and an order of samples does not order their pieces. Make "
                    "pieces = loaderkit.PieceDataset(dataset, row_length), and give pieces.lengths() and an order of the pieces."
                )
            lengths = piece_lengths(self.document_lengths, int(row_length))
        super().__init__(lengths, window=window, shuffle=shuffle, seed=seed, order=order, tail=tail, balance=balance)
        self.row_length, self.batch_size = int(row_length), int(batch_size)
        self.too_long = too_long
        if too_long == "error":
            way_out = "or cut such samples: too_long='split', or leave them out: too_long='drop'"
            check_longest(self.lengths, self.row_length, "PackPlan", "row_length", way_out)

    @property
    def step(self) -> int:
        return self.world.size * self.batch_size

    @property
    def geometry(self) -> Geometry:
        return self.world.size, self.batch_size, TAILS.index(self.tail), self.row_length

    @property
    def makes_rows(self) -> bool:
        return True

    def cuts(self) -> Cuts | None:
        return None if self.document_lengths is None else Cuts(self.document_lengths, self.row_length)

    def remark(self) -> str | None:
        needed = self.step * self.row_length / max(1.0, float(self.lengths.mean()))
        return small_window("PackPlan", self.window, len(self.lengths), needed, self.world.size)

    def arrange(self, lengths: Int64Array, geometry: Geometry, *, last: bool) -> Arrangement | None:
        ranks, batch_size, tail, row_length = geometry
        policy = TAILS[tail] if last else "keep"
        numbers, rows = pack(lengths, row_length)
        full, rest = divmod(rows, ranks * batch_size)
        steps = full + (rest > 0 and policy != "drop")
        if policy == "keep":
            least = steps * ranks
            if self.balance is not None:  # without it, some ranks of a step may have one row more than others
                least = max(least, -(-rows // ranks) * ranks)
            rows = _split_rows(numbers, rows, least)
            if rows < steps * ranks and last:
                raise too_few(len(lengths), ranks)
            if rows < max(1, steps * ranks):
                zero = np.zeros(1, np.int64)
                return Arrangement(np.empty(0, np.int64), zero, zero) if last else None
        # Best fit decreasing fills the first rows with few long samples; shuffled rows give batches of like size.
        wanted = np.argsort(hash_positions(np.arange(rows, dtype=np.int64), "rows"), kind="stable")
        if policy != "keep":
            wanted = wanted[np.arange(steps * ranks * batch_size) % max(1, rows)]
        sizes = np.bincount(numbers[numbers >= 0], minlength=rows)
        members = np.split(np.argsort(numbers, kind="stable")[len(lengths) - int(sizes.sum()) :], np.cumsum(sizes)[:-1])
        places = np.concatenate([members[row] for row in wanted.tolist()] or [np.empty(0, np.int64)])
        ends = np.concatenate([[0], np.cumsum(sizes[wanted])])
        batches = steps * ranks
        return Arrangement(places, ends[np.arange(batches + 1) * len(wanted) // max(1, batches)], ends)

    def tokens_of(self, lengths: Int64Array, arrangement: Arrangement) -> Int64Array:
        starts = arrangement.bounds if arrangement.rows is None else arrangement.rows
        return np.diff(np.searchsorted(starts, arrangement.bounds)) * self.row_length

    def costs_of(self, lengths: Int64Array, arrangement: Arrangement, cost: Cost, geometry: Geometry) -> Float64Array:
        if arrangement.rows is None or len(arrangement.bounds) < 2:
            return np.empty(0)
        costs = _costs_of_rows(lengths[arrangement.places], arrangement.rows, cost, geometry[3])
        return sums(costs, np.searchsorted(arrangement.rows, arrangement.bounds))

    def balanced(self, lengths: Int64Array, arrangement: Arrangement, cost: Cost, geometry: Geometry) -> Arrangement:
        if arrangement.rows is None or len(arrangement.bounds) < 2:
            return arrangement
        costs = _costs_of_rows(lengths[arrangement.places], arrangement.rows, cost, geometry[3])
        return deal_rows(arrangement, arrangement.rows, costs, geometry[0])


def pack(lengths: Int64Array, row_length: int) -> tuple[npt.NDArray[np.int64], int]:
    """Pack samples into rows by best fit decreasing: the longest first, each into the row with the least room that suffices.

    Source: Johnson, "Near-optimal bin packing algorithms" (MIT, 1973).

    Returns:
        The row of each sample (N,), -1 for a sample longer than a row; and the number of rows.
    """
    numbers = np.full(len(lengths), -1, dtype=np.int64)
    with_room: dict[int, list[int]] = {}  # rows by the room left in them
    rooms: list[int] = []  # the keys, ascending
    rows = 0
    chosen: list[int] = []
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] <= row_length]
    for length in np.maximum(lengths[order], 1).tolist():
        place = bisect.bisect_left(rooms, length)
        if place < len(rooms):
            room = rooms[place]
            row = with_room[room].pop()
            if not with_room[room]:
                del with_room[room], rooms[place]
        else:
            room, row = row_length, rows
            rows += 1
        room -= length
        if room:
            if room not in with_room:
                with_room[room] = []
                bisect.insort(rooms, room)
            with_room[room].append(row)
        chosen.append(row)
    numbers[order] = chosen
    return numbers, rows


def _costs_of_rows(lengths: Int64Array, rows: Int64Array, cost: Cost, row_length: int) -> Float64Array:
    """Return the cost of each row (R,): the sum over its samples, and its padding, which kernels compute too."""
    padding = row_length - np.add.reduceat(lengths, rows[:-1])
    return sums(costs_of(cost, lengths), rows) + np.where(padding > 0, costs_of(cost, np.maximum(padding, 0)), 0)


def _split_rows(numbers: Int64Array, rows: int, wanted: int) -> int:
    """Halve the rows with most samples, in place, until there are `wanted` rows or none can be halved; return their number."""
    if np.count_nonzero(numbers >= 0) < wanted:
        return rows
    while rows < wanted:
        sizes = np.bincount(numbers[numbers >= 0], minlength=rows)
        if not sizes.size or sizes.max() < 2:
            break
        members = np.flatnonzero(numbers == int(sizes.argmax()))
        numbers[members[len(members) // 2 :]] = rows
        rows += 1
    return rows
