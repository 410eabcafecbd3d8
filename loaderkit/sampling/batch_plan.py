"""Batches of a fixed size, cut from an order one after another."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Self

import numpy as np

from loaderkit.sampling.cursor import Cursor, bad_cursor
from loaderkit.sampling.order import Order, indices_at
from loaderkit.sampling.plan import BatchKey, Plan, Tail
from loaderkit.sampling.skipping_plan import Remaining, SkippingPlan
from loaderkit.sampling.skips import Skips
from loaderkit.system.arrays import Int64Array
from loaderkit.system.world import World

# The most positions and steps in one call of the order: this spreads numpy's cost per call over many batches.
_LOOKED_UP, _STEPS = 1 << 15, 1 << 10


@dataclass(frozen=True, kw_only=True)
class BatchPlan(Plan):
    """Batches of a fixed size, cut from an order one after another.

    A step takes the next `world.size` x `batch_size` samples. Each rank takes its own stretch of them, or its own lanes of a
    ShardOrder. `tail` says what happens at an epoch's end:

    - keep: the ranks share what is left evenly; batch sizes in a step differ by at most one. If fewer samples than ranks
      are left, the last two steps share their samples (with batch size 1, the last step takes them all).
    - drop: an incomplete step is left out.
    - pad: an incomplete step is filled from the start of the order.

    Args:
        order: The order of the samples.
        batch_size: Samples of a batch, for each rank; None means single samples instead of batches.
        tail: See above.
        world: This rank and the number of ranks.
    """

    order: Order
    batch_size: int | None
    tail: Tail = "keep"
    world: World = field(default_factory=World)

    def with_world(self, world: World) -> Self:
        return dataclasses.replace(self, world=world)

    def key(self, epoch: int) -> str:
        return self.order.key(epoch)

    @property
    def follows_order(self) -> bool:
        return True

    def is_same_each_epoch(self) -> bool:
        return self.order.is_same_each_epoch()

    def without(self, skips: Skips) -> Plan:
        if not skips:
            return self
        closed = dataclasses.replace(self, order=Remaining(self.order, skips))
        return SkippingPlan(self, closed, skips)

    def remark(self) -> str | None:
        return self.order.remark(self.world, self.batch_size or 1)

    def check_cursor(self, cursor: Cursor) -> None:
        if cursor.plan:
            raise bad_cursor("plan", list(cursor.plan), "an empty list: batches of a fixed size need nothing more")

    def remaining(self, cursor: Cursor) -> int:
        left = max(0, self._size(cursor.epoch) - cursor.samples)
        full, rest = divmod(left, self.step)
        if rest == 0 or self.tail == "drop":
            return full
        if self.tail == "pad":
            return full + 1
        self._check_spread(cursor, left)
        return full if self._joined(full, rest) else full + 1

    def advance(self, cursor: Cursor, batches: int = 1) -> Cursor:
        cursor, batches = self._skip_epochs(cursor, batches)
        if batches == 0:
            return cursor
        full = max(0, self.remaining(cursor) - 2)  # these steps are full, whatever the tail
        samples = cursor.samples + min(batches, full) * self.step
        for _ in range(batches - full):
            samples += self._step(cursor, samples)
        return Cursor(epoch=cursor.epoch, samples=samples, batches=cursor.batches + batches)

    def keys(self, cursor: Cursor) -> Iterator[BatchKey]:
        epoch, size = cursor.epoch, self._size(cursor.epoch)
        left, start = self.remaining(cursor), cursor.samples
        while left > 0:
            if left > 2:
                steps, step = min(left - 2, _STEPS, max(1, _LOOKED_UP * self.world.size // self.step)), self.step
            else:  # the last two steps may be short
                steps, step = 1, self._step(cursor, start)
            end = start + steps * step
            positions = self._positions(epoch, start, steps, step)
            places = positions.reshape(-1)
            if end > size:
                places %= size  # only tail="pad" looks past the end
            indices = indices_at(self.order, epoch, places).reshape(positions.shape)
            yield from map(BatchKey, repeat(epoch), positions, indices)
            start, left = end, left - steps

    def _positions(self, epoch: int, start: int, steps: int, step: int) -> Int64Array:
        """Return this rank's positions (steps, B) in the steps from `start` on, each of `step` samples."""
        starts = np.arange(start, start + steps * step, step, dtype=np.int64)
        base, extra = divmod(step, self.world.size)
        low = self.world.rank * base + min(self.world.rank, extra)
        high = low + base + (self.world.rank < extra)
        if self.world.size == 1 or start + steps * step > self._size(epoch):  # nothing to share, or tail="pad"
            return starts[:, None] + np.arange(low, high, dtype=np.int64)
        return self.order.share(epoch, starts, step, low, high)

    @property
    def step(self) -> int:
        return self.world.size * (self.batch_size or 1)

    def _size(self, epoch: int) -> int:
        return int(self.order.size(epoch))  # a state holds no numpy integers

    def _joined(self, full: int, rest: int) -> bool:
        """Return whether a rest smaller than a step joins the last full step, because batches of one can't be split."""
        return self.batch_size == 1 and 0 < rest < self.world.size and full > 0

    def _step(self, cursor: Cursor, samples: int) -> int:
        """Return the number of samples, over all ranks, of the step at `samples`."""
        left = self._size(cursor.epoch) - samples
        full, rest = divmod(left, self.step)
        if self.tail != "keep" or full > 1 or rest == 0 or (full and rest >= self.world.size):
            return self.step
        if full and not self._joined(full, rest):
            return -(-left // 2)
        return left

    def _check_spread(self, cursor: Cursor, left: int) -> None:
        ranks = self.world.size
        if left < ranks:
            where = f"left in epoch {cursor.epoch}" if cursor.samples else "in the dataset"
            raise ValueError(
                f"plan: {left} samples {where} for {ranks} ranks, wanted at least one for each (tail='keep'). "
                f"Use at most {left} ranks, or tail='drop' or 'pad'"
                + (f", or go on with loader.seek(epoch={cursor.epoch + 1})." if cursor.samples else ".")
            )
        if self.batch_size is None and left % ranks:
            raise ValueError(
                f"plan: {left} samples for {ranks} ranks, one at a time (batch_size=None), come out uneven. "
                "Use tail='drop' or 'pad', or batch_size=1."
            )
