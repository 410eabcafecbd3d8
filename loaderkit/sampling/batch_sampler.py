"""Batches from a user's own batch sampler, dealt to the ranks."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from torch import Tensor

from loaderkit.sampling.cursor import Cursor, bad_cursor
from loaderkit.sampling.keys import Keys, drawn_keys
from loaderkit.sampling.order import cached
from loaderkit.sampling.plan import BatchKey, Plan, Tail
from loaderkit.sampling.samplers import Drawing, SamplerOrder
from loaderkit.system.arrays import Int64Array
from loaderkit.system.digests import digest
from loaderkit.system.indices import FROM_MASK
from loaderkit.system.world import World

MOST_BATCHES = 1 << 18  # the most batches of a batch sampler without a length, unless the data is large


class BatchSamplerOrder(SamplerOrder):
    """The indices, or other keys, of a batch sampler's batches, one batch after another.

    Unlike a sampler of single indices, it must have an end.

    Args:
        sampler: Yields lists of indices or keys.
        seed: Seeds the global generators while the sampler draws.
        most: The most batches in an epoch of a sampler without a length.

    Raises:
        ValueError: If the sampler splits the samples over the ranks, which the Loader does itself.
    """

    def __init__(self, sampler: Iterable[Sequence[object]], *, seed: int = 0, most: int = MOST_BATCHES) -> None:
        super().__init__(getattr(sampler, "sampler", ()), seed=seed, most=most)  # refuses a sampler of one rank's part
        self._sampler = sampler

    def key(self, epoch: int) -> str:
        drawn: Any = self._drawn(epoch)
        if drawn.dtype == object:
            drawn = self._digest(epoch)
        return f"batch-sampler-1({self.name}, {digest(drawn, self.ends(epoch))})"

    def ends(self, epoch: int) -> Int64Array:
        """Return the position after each batch's last sample (N,)."""
        ends: Int64Array = cached(self, epoch, lambda: self._draw_all(epoch))[1]
        return ends

    def _epoch(self, epoch: int) -> Keys:
        indices: Keys = cached(self, epoch, lambda: self._draw_all(epoch))[0]
        return indices

    def is_endless(self, epoch: int) -> bool:
        return False

    def _draw(self, epoch: int) -> Keys:
        return self._draw_all(epoch)[0]

    def _draw_all(self, epoch: int) -> tuple[Keys, Int64Array]:
        drawing = Drawing(self._sampler, self._seed, epoch)
        drawn = drawing.epoch(self._most)
        if drawing.length is None and len(drawn) > self._most:
            raise ValueError(
                f"loader: {drawing.name} has no length and gives more than {self._most:,} batches, wanted an end. Let an epoch "
                "end after n batches, and give the batch sampler a __len__ that returns n. An endless sampler of single "
                "indices may be given as order=."
            )
        batches = [_keys_of(batch) for batch in drawn]
        for batch, keys in zip(drawn, batches, strict=True):
            if keys.dtype != batches[0].dtype:
                raise _no_batch(batch)
        ends = np.cumsum([len(batch) for batch in batches], dtype=np.int64)
        return np.concatenate(batches) if batches else ends, ends


@dataclass(frozen=True, kw_only=True)
class BatchSamplerPlan(Plan):
    """The batches of a batch sampler: rank r of R gets batches r, r + R, and so on.

    Args:
        order: The dataset indices of all batches, joined in the order of the batches.
        tail: What happens if the number of batches is not a multiple of R: "keep" raises an error, "drop" leaves out the
            last batches, and "pad" repeats the first ones.
        world: This rank and the number of ranks.
    """

    order: BatchSamplerOrder
    tail: Tail = "keep"
    world: World = field(default_factory=World)

    def with_world(self, world: World) -> Self:
        return dataclasses.replace(self, world=world)

    def key(self, epoch: int) -> str:
        return self.order.key(epoch)

    @property
    def step(self) -> int:
        return self.world.size

    def check_cursor(self, cursor: Cursor) -> None:
        if cursor.plan:
            raise bad_cursor("plan", list(cursor.plan), "an empty list")
        if cursor.samples and cursor.samples not in self.order.ends(cursor.epoch):
            raise bad_cursor("samples", cursor.samples, f"the end of a batch of {self.order.name}")

    def remaining(self, cursor: Cursor) -> int:
        left = len(self.order.ends(cursor.epoch)) - self._done(cursor)
        full, rest = divmod(left, self.world.size)
        if rest and self.tail == "keep":
            raise ValueError(
                f"loader: {left} batches of {self.order.name} for {self.world.size} ranks come out uneven, and ranks with more "
                "batches would wait for the others forever. Wanted a multiple of the number of ranks. Change the sampler, or "
                "give tail='drop' or tail='pad'."
            )
        return full + (rest > 0 and self.tail == "pad")

    def advance(self, cursor: Cursor, batches: int = 1) -> Cursor:
        cursor, batches = self._skip_epochs(cursor, batches)
        if batches == 0:
            return cursor
        done = self._done(cursor) + batches * self.world.size
        samples = int(self.order.ends(cursor.epoch)[done - 1])
        return Cursor(epoch=cursor.epoch, samples=samples, batches=cursor.batches + batches)

    def keys(self, cursor: Cursor) -> Iterator[BatchKey]:
        ends = self.order.ends(cursor.epoch)
        first = self._done(cursor) + self.world.rank
        for step in range(self.remaining(cursor)):
            batch = (first + step * self.world.size) % len(ends)  # only tail="pad" goes past the end
            start = int(ends[batch - 1]) if batch else 0
            positions = np.arange(start, ends[batch], dtype=np.int64)
            yield BatchKey(cursor.epoch, positions, self.order.at(cursor.epoch, positions))

    def _done(self, cursor: Cursor) -> int:
        """Return how many batches of all ranks end at or before the cursor."""
        if not cursor.samples:
            return 0
        ends = self.order.ends(cursor.epoch)
        batch = int(np.searchsorted(ends, cursor.samples))
        if batch == len(ends) or ends[batch] != cursor.samples:
            raise ValueError(
                f"loader: sample {cursor.samples:,} is inside a batch of {self.order.name}, wanted the end of a batch. Seek to "
                "an epoch, or load a state."
            )
        return batch + 1


def _keys_of(batch: Any) -> Keys:
    listed = batch.tolist() if isinstance(batch, Tensor | np.ndarray) else batch
    try:
        keys = drawn_keys([] if isinstance(listed, str | bytes) else list(listed))
    except TypeError as error:
        raise _no_batch(batch) from error
    if not len(keys):
        raise _no_batch(batch)
    return keys


def _no_batch(batch: object) -> TypeError:
    return TypeError(
        f"loader: the batch sampler gives {batch!r}, wanted a list of one or more integers, the samples' indices, or of keys, as in the "
        f"other batches. {FROM_MASK} Give a sampler of single indices as order=."
    )
