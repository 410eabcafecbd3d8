"""Packed rows, ordered so that all lanes deliver rows of similar cost at the same time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loaderkit.datasets.streams.lane import Lane, LaneSpec
from loaderkit.datasets.streams.pack import Rows
from loaderkit.datasets.streams.samples import Failed, PendingSample
from loaderkit.datasets.streams.shuffle import WindowLane, Windows
from loaderkit.datasets.streams.verb import Below
from loaderkit.sampling.by_length.balance import AttentionCost, Cost, cost_key, costs_of
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer
from loaderkit.system.names import function_name


@dataclass(frozen=True)
class Balanced(Windows):
    """Windows of packed rows, sorted by cost and delivered in an order that is the same for all lanes.

    Lanes do not communicate. Each delivers its window's n-th most expensive row at the same time as the others.

    Args:
        size: Number of rows in a window.
        rows: How the rows are packed.
        cost: The cost of a document, by its length.
    """

    rows: Rows
    cost: Cost

    def __post_init__(self) -> None:
        check_integer("pack", "together", self.size, 1)
        object.__setattr__(self, "size", int(self.size))
        cost_key(self.cost, self._longest(), "pack")

    def __str__(self) -> str:
        cost = repr(self.cost) if isinstance(self.cost, AttentionCost) else function_name(self.cost)
        return f"pack({self.rows.row_length}, balance={cost})"

    def order(self) -> str:
        return f"balance-1({self.size}, {cost_key(self.cost, self._longest(), 'pack')})"

    def lane(self, below: Below, spec: LaneSpec) -> Lane:
        return _BalancedLane(below, self, spec)

    def cost_of(self, row: PendingSample) -> float:
        """Return a row's cost: the sum over its documents and its padding; 0 for a row that failed."""
        if type(row.sample) is Failed:
            return 0.0
        lengths = [self.rows.length(document) for document in row.sample]
        padding = self.rows.row_length - sum(lengths)
        found = costs_of(self.cost, np.array(lengths + [padding] * (padding > 0), dtype=np.int64), "pack")
        return float(sum(found.tolist()))

    def _longest(self) -> Int64Array:
        return np.array([self.rows.row_length], dtype=np.int64)


class _BalancedLane(WindowLane):
    def __init__(self, below: Below, balanced: Balanced, spec: LaneSpec) -> None:
        self._cost_of = balanced.cost_of
        self._common = ("balanced", below.seed, spec.place.cycle)  # without the lane's number
        super().__init__(below, balanced.size, spec)

    def _ordered(self, found: Sequence[PendingSample], positions: Int64Array) -> list[PendingSample]:
        dearest = np.argsort([-self._cost_of(row) for row in found], kind="stable")
        order = dearest[np.argsort(hash_positions(positions, *self._common), kind="stable")]
        return [found[row] for row in order.tolist()]
