"""Which shards each lane of a stream reads, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from loaderkit.seeding.keys import hash_positions


class ShardShare(NamedTuple):
    """What one lane reads of a shard: the blocks `number`, `number + shares`, `number + 2 * shares`, ..."""

    shard: str
    number: int = 0
    shares: int = 1


@dataclass(frozen=True, kw_only=True)
class Deal:
    """How shards are dealt to lanes: lane l of L gets shares l, l + L, l + 2L, ... of all shards' shares.

    The fields are those of `StreamDataset`.

    Raises:
        ValueError: If there are no shards, two have the same name, or a number is out of range.
    """

    shards: Sequence[str]
    lanes: int
    window: int
    shuffled: bool
    seed: int
    share: int
    block: int
    _orders: dict[object, list[int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.shards:
            raise ValueError("stream: there are no shards, wanted at least one name. Check the pattern they come from.")
        if len(set(self.shards)) < len(self.shards):
            twice = next(name for number, name in enumerate(self.shards) if name in self.shards[:number])
            raise ValueError(f"stream: shard {twice!r} comes twice. Give each shard once.")
        for name in ("lanes", "window", "share", "block"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"stream: {name} is {value!r}, wanted an integer of at least 1.")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"stream: seed is {self.seed!r}, wanted an integer.")
        if self.share > self.lanes:
            raise ValueError(f"stream: share={self.share} of {self.lanes} lanes, wanted at most {self.lanes}.")

    @property
    def shares(self) -> int:
        """The number of shards, or of shares of shards: how many lanes can have something to read."""
        return len(self.shards) * self.share

    @property
    def name(self) -> str:
        """A name for the order of the samples, with its version and all settings that it depends on."""
        shuffled = f"shuffled by {self.window}" if self.shuffled else "as they are"
        shared = f", shards shared by {self.share} in blocks of {self.block}" if self.share > 1 else ""
        return f"stream-1 in {self.lanes} lanes, {shuffled}{shared}"

    def of(self, cycle: int, lane: int, path: Sequence[int] = ()) -> list[ShardShare]:
        """Return the shards, or shares of shards, that a lane reads in a cycle (an epoch), in order."""
        order, share = self._order(cycle, tuple(path)), self.share
        return [
            ShardShare(self.shards[order[number // share]], number % share, share)
            for number in range(lane, self.shares, self.lanes)
        ]

    def _order(self, cycle: int, path: tuple[int, ...]) -> list[int]:
        order = self._orders.get((cycle, path))
        if order is None:
            numbers = np.arange(len(self.shards), dtype=np.int64)
            if self.shuffled:
                numbers = np.argsort(hash_positions(numbers, "shards", self.seed, cycle, *path), kind="stable")
            order = numbers.tolist()
            self._orders.clear()  # the next lanes are of the same cycle
            self._orders[cycle, path] = order
        return order

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_orders": {}}
