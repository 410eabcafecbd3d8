"""The plan of a run that leaves out stretches of its order."""

import dataclasses
from collections.abc import Iterator
from typing import Self

import numpy as np

from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import BatchKey, Plan
from loaderkit.sampling.skips import Skips
from loaderkit.system.arrays import Int64Array
from loaderkit.system.world import World


class Remaining(Order):
    """An order without some stretches: positions count the samples that stay."""

    def __init__(self, order: Order, skips: Skips) -> None:
        self._order, self._skips = order, skips

    def size(self, epoch: int) -> int:
        size, gaps = int(self._order.size(epoch)), self._skips.gaps(epoch)
        return size if gaps is None else gaps.kept_before(size)

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        gaps = self._skips.gaps(epoch)
        return self._order.at(epoch, positions if gaps is None else gaps.positions(positions))

    def share(self, epoch: int, starts: Int64Array, step: int, low: int, high: int) -> Int64Array:
        gaps = self._skips.gaps(epoch)
        if gaps is None:
            return self._order.share(epoch, starts, step, low, high)
        shared = super().share(epoch, starts, step, low, high)
        begin = gaps.positions(starts)
        whole = np.flatnonzero(gaps.positions(starts + step - 1) - begin == step - 1)  # steps with no gap inside
        if len(whole):
            shared[whole] = gaps.kept_before_each(self._order.share(epoch, begin[whole], step, low, high))
        return shared

    def key(self, epoch: int) -> str:
        return self._order.key(epoch)

    @property
    def reach(self) -> int:
        return self._order.reach

    def remark(self, world: World, batch_size: int) -> str | None:
        return self._order.remark(world, batch_size)


class SkippingPlan(Plan):
    """A plan that leaves out stretches of the order, and closes the gaps.

    Its steps are as full as those of the whole plan; only the epoch is shorter.

    Args:
        whole: The plan of the whole order.
        closed: The same plan over the `Remaining` samples.
        skips: What is left out.
    """

    def __init__(self, whole: Plan, closed: Plan, skips: Skips) -> None:
        self._whole, self._closed, self._skips = whole, closed, skips
        self.world, self.order = whole.world, whole.order

    def with_world(self, world: World) -> Self:
        return type(self)(self._whole.with_world(world), self._closed.with_world(world), self._skips)

    @property
    def follows_order(self) -> bool:
        return True

    def key(self, epoch: int) -> str:
        return self._closed.key(epoch)

    @property
    def step(self) -> int:
        return self._closed.step

    def remark(self) -> str | None:
        return self._closed.remark()

    def remaining(self, cursor: Cursor) -> int:
        return self._closed.remaining(self._closed_cursor(cursor))

    def advance(self, cursor: Cursor, batches: int = 1) -> Cursor:
        found = self._closed.advance(self._closed_cursor(cursor), batches)
        gaps = self._skips.gaps(found.epoch)
        return found if gaps is None else dataclasses.replace(found, samples=gaps.end(found.samples))

    def keys(self, cursor: Cursor) -> Iterator[BatchKey]:
        gaps = self._skips.gaps(cursor.epoch)
        for key in self._closed.keys(self._closed_cursor(cursor)):
            if gaps is not None:
                key.positions = gaps.positions(key.positions)
            yield key

    def _closed_cursor(self, cursor: Cursor) -> Cursor:
        """Return the cursor in the order without the gaps."""
        gaps = self._skips.gaps(cursor.epoch)
        return cursor if gaps is None else dataclasses.replace(cursor, samples=gaps.kept_before(cursor.samples))


def leave_out_more(whole: Plan, skips: Skips, more: Skips, cursor: Cursor, *, counted: bool = True) -> Skips:
    """Return `skips` with the part of `more` that lies ahead of a cursor.

    Args:
        whole: The plan of the whole order.
        skips: What is left out already.
        more: What is to be left out too.
        cursor: Where the loader stands.
        counted: Whether a Trainer may have counted the batches up to the cursor.

    Raises:
        ValueError: If the plan cannot leave samples out, or an epoch would have no step left. Also if a Trainer's count
            of batches would no longer be right.
    """
    more = more.ahead_of(cursor.epoch, cursor.samples)
    joined = skips | more
    if not joined:
        return skips
    plan = whole.without(joined)
    if joined == skips:
        return skips
    for epoch in sorted({epoch for epoch, _, _ in more.stretches}):
        if not plan.batches(epoch):
            raise ValueError(
                f"loader: skip leaves no step of epoch {epoch}, wanted at least one. To go on with the next epoch: "
                f"loader.seek(epoch={epoch + 1})."
            )
    before, after = (whole.without(each).placed(cursor).batches for each in (skips, joined))
    if counted and before != after:  # a Trainer that counts batches would end the epoch too early or too late
        raise ValueError(
            f"loader: {after} batches would be done after this skip, and {before} are counted, because the number of ranks "
            f"or the batch size has changed in this epoch. What is left out is not a multiple of {plan.step} samples, a "
            "step of all ranks, as wanted then."
        )
    return joined
