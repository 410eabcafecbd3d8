"""Who gets which batch: an order, a batch size, a world and a tail policy."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal, Self

import numpy as np

from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.order import Order
from loaderkit.system.arrays import Int64Array
from loaderkit.system.world import World

Tail = Literal["keep", "drop", "pad"]
_LOOKED_UP = 1 << 15  # positions in one call of the order: this spreads numpy's cost per call over many batches


class BatchKey:
    """All that a worker needs to make a batch: where its samples stand, and which they are.

    Args:
        epoch: Whose seeds they get.
        positions: (B,), in the order; seeds come from these.
        indices: (B,), in the dataset.
        rows: (R + 1,), where a batch's rows begin, if each holds several samples.
    """

    __slots__ = ("_positions", "epoch", "indices", "rows")

    def __init__(
        self, epoch: int, positions: Int64Array | range, indices: Int64Array, rows: Int64Array | None = None
    ) -> None:
        self.epoch, self.indices, self.rows = epoch, indices, rows
        self._positions = positions

    @property
    def positions(self) -> Int64Array:
        """Where the samples (B,) stand in the order."""
        if isinstance(self._positions, range):  # of no use to a batch that is read as a whole
            self._positions = np.arange(self._positions.start, self._positions.stop, dtype=np.int64)
        return self._positions


class Plan(ABC):
    """Deals an epoch's samples to steps and ranks, as a pure function of a cursor."""

    world: World

    @abstractmethod
    def with_world(self, world: World) -> Self:
        """Return the same plan for another world."""

    @abstractmethod
    def key(self, epoch: int) -> str:
        """Name the order of the samples, with its version and all that shapes it."""

    @property
    @abstractmethod
    def step(self) -> int:
        """Return the samples of a full step, over all ranks: the unit in which the plan counts batches."""

    @abstractmethod
    def remaining(self, cursor: Cursor) -> int:
        """Return how many batches each rank has left in the cursor's epoch."""

    @abstractmethod
    def advance(self, cursor: Cursor, batches: int = 1) -> Cursor:
        """Return the cursor after some more batches; after an epoch's last it is the next epoch's start."""

    @abstractmethod
    def keys(self, cursor: Cursor) -> Iterator[BatchKey]:
        """Yield this rank's batches from the cursor to the end of its epoch."""

    def remark(self) -> str | None:
        """Say what is amiss with the settings on these ranks, if anything."""
        return None

    def placed(self, cursor: Cursor) -> Cursor:
        """Return the cursor with its batches counted in this plan's own batches.

        After a resume with another world or batch size, a Trainer that knows
        only batches then sees the same fraction of the epoch done.
        """
        done = self.batches(cursor.epoch) - self.remaining(cursor)
        return dataclasses.replace(cursor, batches=done)

    def batches(self, epoch: int) -> int:
        """Return the number of batches of each rank in a whole epoch."""
        return self.remaining(Cursor(epoch=epoch))

    def batch(self, cursor: Cursor, ahead: int = 0) -> BatchKey:
        """Return the batch of this rank that comes `ahead` batches after the next one.

        Raises:
            IndexError: If the cursor's epoch has no such batch.
        """
        left = self.remaining(cursor)
        if not 0 <= ahead < left:
            raise IndexError(f"plan: batch {ahead} asked for, wanted one of the {left} left in epoch {cursor.epoch}.")
        return next(self.keys(self.advance(cursor, ahead)))


@dataclass(frozen=True, kw_only=True)
class BatchPlan(Plan):
    """Batches of a fixed size, in the order's order.

    A step takes `world.size` x `batch_size` samples that follow each other, and
    each rank its own stretch of them. At an epoch's end the tail policy decides:

    - keep: what is left is spread evenly; sizes in a step differ by at most one.
      Where fewer samples than ranks are left, the last two steps share what they
      hold (with batch size 1, the last step holds it all).
    - drop: an incomplete step is left out.
    - pad: it is filled up from the start of the order.

    Args:
        order: The order of the samples.
        batch_size: Samples a batch and rank; None means single samples, not batches.
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

    def remaining(self, cursor: Cursor) -> int:
        left = self._left(cursor)
        full, rest = divmod(left, self.step)
        if rest == 0 or self.tail == "drop":
            return full
        if self.tail == "pad":
            return full + 1
        self._check_spread(cursor, left)
        return full if self._joined(full, rest) else full + 1

    def advance(self, cursor: Cursor, batches: int = 1) -> Cursor:
        while (left := self.remaining(cursor)) <= batches:
            if left == 0 and cursor.samples == 0:
                return cursor  # an epoch without batches: nowhere to go
            batches -= left
            cursor = cursor.next_epoch()
        if batches == 0:
            return cursor
        samples = cursor.samples
        most = left - 2  # up to here all steps are full, whatever the tail
        samples += min(batches, max(most, 0)) * self.step
        for _ in range(batches - max(most, 0)):
            samples += self._step(cursor, samples)
        return Cursor(epoch=cursor.epoch, samples=samples, batches=cursor.batches + batches)

    def keys(self, cursor: Cursor) -> Iterator[BatchKey]:
        epoch, size = cursor.epoch, self._size(cursor.epoch)
        left, start = self.remaining(cursor), cursor.samples
        while left > 0:
            if left > 2:
                steps, step = min(left - 2, max(1, _LOOKED_UP * self.world.size // self.step)), self.step
            else:  # the last two steps may be short
                steps, step = 1, self._step(cursor, start)
            end = start + steps * step
            positions: Iterable[Int64Array | range]
            if self.world.size == 1 and end <= size:
                positions = map(range, range(start, end, step), range(start + step, end + step, step))
                indices = self.order.indices(epoch, start, end)
            else:
                positions = places = self._places(start, steps, step)
                if end > size:
                    places %= size  # only tail="pad" looks past the end
                indices = self.order.at(epoch, places.reshape(-1))
            yield from map(BatchKey, repeat(epoch), positions, indices.reshape(steps, -1))
            start, left = end, left - steps

    def _places(self, start: int, count: int, step: int) -> Int64Array:
        """Return the positions (C, B) of this rank in some steps from `start` on."""
        low, high = self._share(step)
        steps = np.arange(start, start + count * step, step, dtype=np.int64)
        return steps[:, None] + np.arange(low, high, dtype=np.int64)

    @property
    def step(self) -> int:
        return self.world.size * (self.batch_size or 1)

    def _left(self, cursor: Cursor) -> int:
        return max(0, self._size(cursor.epoch) - cursor.samples)

    def _size(self, epoch: int) -> int:
        return int(self.order.size(epoch))  # numpy's integers don't belong in a state

    def _joined(self, full: int, rest: int) -> bool:
        """Say whether a rest too small for a step of its own goes into the last full one, for want of a second."""
        return self.batch_size == 1 and 0 < rest < self.world.size and full > 0

    def _step(self, cursor: Cursor, samples: int) -> int:
        """Return how many samples the step at `samples` takes, over all ranks."""
        left = self._size(cursor.epoch) - samples
        full, rest = divmod(left, self.step)
        if self.tail != "keep" or full > 1 or rest == 0 or (full and rest >= self.world.size):
            return self.step
        if full and not self._joined(full, rest):
            return -(-left // 2)
        return left

    def _share(self, step: int) -> tuple[int, int]:
        """Return this rank's stretch of a step, from its start."""
        base, extra = divmod(step, self.world.size)
        low = self.world.rank * base + min(self.world.rank, extra)
        return low, low + base + (self.world.rank < extra)

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
