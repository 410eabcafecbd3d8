"""Orders: pure functions from (seed, epoch, position) to a dataset index, evaluated at any position."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from loaderkit.sampling.permutation import permutation
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer, plain_integer
from loaderkit.system.digests import digest
from loaderkit.system.indices import as_indices
from loaderkit.system.types import Array
from loaderkit.system.world import World

T = TypeVar("T")


class Order(ABC):
    """An epoch's sequence of dataset indices, with random access.

    A subclass defines `size`, `at`, `key` and `reach`. All must be pure: the same in every process, independent of
    earlier calls.

    Examples:
        >>> class Backwards(lk.Order):
        ...     reach = 5
        ...     def size(self, epoch): return 5
        ...     def at(self, epoch, positions): return 4 - positions
        ...     def key(self, epoch): return "backwards-1"
        >>> [batch.tolist() for batch in lk.Loader(range(5), 2, order=Backwards())]
        [[4, 3], [2, 1], [0]]
    """

    @abstractmethod
    def size(self, epoch: int) -> int:
        """Return the number of positions in an epoch."""

    @abstractmethod
    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        """Return the indices (N,) at positions (N,), each in [0, size)."""

    @abstractmethod
    def key(self, epoch: int) -> str:
        """Return a text that names this order: its version and all settings that shape it, except the dataset's size."""

    @property
    @abstractmethod
    def reach(self) -> int:
        """Return the largest index plus one: the smallest size of a dataset for this order."""

    def shard_block(self) -> int | None:
        """Return how many positions in a row come from one lane of shards; None if the order has no lanes."""
        return None

    def is_same_each_epoch(self) -> bool:
        """Return whether all epochs are known to have the same indices in the same order."""
        return False

    def is_endless(self, epoch: int) -> bool:
        """Return whether an epoch has no end."""
        return False

    def is_repeatable(self, epoch: int) -> bool:
        """Return whether an epoch is the same each time that it is asked for."""
        return True

    def indices(self, epoch: int, start: int, stop: int) -> Int64Array:
        """Return the indices (stop - start,) at positions from `start` to `stop`."""
        size = self.size(epoch)
        if not 0 <= start <= stop <= size:
            raise IndexError(f"order: positions {start} to {stop} asked for, wanted 0 <= start <= stop <= {size}.")
        return self.at(epoch, np.arange(start, stop, dtype=np.int64))

    def share(self, epoch: int, starts: Int64Array, step: int, low: int, high: int) -> Int64Array:
        """Return the positions (S, high - low) of one rank: those from `low` to `high` of each step.

        The steps begin at `starts` (S,) and have `step` positions each. An order may sort a step's positions first,
        always in the same way, so that a rank keeps to its own part of the data.
        """
        return starts[:, None] + np.arange(low, high, dtype=np.int64)

    def spans(self, epoch: int, ends: Int64Array) -> tuple[Int64Array, Int64Array] | None:
        """Return the first and the last position of each part of the dataset, each (S,).

        Return None if that would take long.

        Part s has the indices from `ends[s - 1]` up to `ends[s]`, excluded; part 0 begins at 0. The first position may
        be too early, and the last too late.
        """
        return None

    def cost(self, world: World, batch_size: int) -> str | None:
        """Say in words what reads in this order keep in use, such as shards; None if there is nothing to say."""
        return None

    def remark(self, world: World, batch_size: int) -> str | None:
        """Return a warning about this order on these ranks, or None."""
        return None

    def __repr__(self) -> str:
        try:
            size = self.size(0)
        except Exception:  # a debugger may show an object whose `__init__` has not finished
            return object.__repr__(self)
        return f"{type(self).__name__}: {size:,} sample{'s' * (size != 1)} an epoch{self._details()}"

    def _details(self) -> str:
        """Return what `repr` adds to the size."""
        return ""

    def __getstate__(self) -> dict[str, object]:
        # An epoch's cached arrays are cheaper to make again than to send.
        return {name: {} if name == "_epochs" else value for name, value in self.__dict__.items()}


def indices_at(order: Order, epoch: int, positions: Int64Array) -> Array:
    """Return the indices (N,) int64 that an order has at positions (N,), or keys of another kind as objects.

    Raises:
        ValueError: If a user's own order gives neither, such as floats.
    """
    found = order.at(epoch, positions)
    is_known = getattr(found, "dtype", None) in (np.int64, object)
    return found if is_known else as_indices(type(order).__name__, found)


def cached(order: Any, epoch: int, make: Callable[[], T]) -> T:
    """Return the value that `make` gives for an epoch, kept until another epoch is asked for.

    Threads may use different epochs at the same time.
    """
    epochs: dict[int, T] = order._epochs
    value = epochs.get(epoch)
    if value is None:
        value = make()
        epochs.clear()
        epochs[epoch] = value
    return value


@dataclass(frozen=True)
class Sequential(Order):
    """The dataset's own order.

    Args:
        length: Samples of the dataset.

    Examples:
        >>> lk.Sequential(5).indices(0, 0, 5)
        array([0, 1, 2, 3, 4])
    """

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", plain_integer(self.length))
        check_integer("Sequential", "size", self.length, 0)

    def size(self, epoch: int) -> int:
        return self.length

    def is_same_each_epoch(self) -> bool:
        return True

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        return positions

    @property
    def reach(self) -> int:
        return self.length

    def spans(self, epoch: int, ends: Int64Array) -> tuple[Int64Array, Int64Array]:
        return np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1])), ends - 1

    def key(self, epoch: int) -> str:
        return "sequential-1"


@dataclass(frozen=True)
class Shuffled(Order):
    """A new permutation each epoch, a function of (seed, epoch) alone.

    Below 2**20 samples every permutation is as likely as any other. From 2**20 on it is a keyed permutation without a
    list, which costs the same at 10^12 samples: see `loaderkit.sampling.permutation`.

    Args:
        length: Samples of the dataset.
        seed: The seed of the shuffle.

    Examples:
        >>> order = lk.Shuffled(10, seed=0)
        >>> order.indices(epoch := 0, 0, 10)
        array([0, 7, 6, 1, 9, 3, 8, 2, 4, 5])
        >>> lk.Shuffled(10**12).at(epoch, np.array([0, 1])).shape
        (2,)
    """

    length: int
    seed: int = field(default=0, kw_only=True)
    _epochs: dict[int, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", plain_integer(self.length))
        check_integer("Shuffled", "size", self.length, 0)

    def size(self, epoch: int) -> int:
        return self.length

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        found: Int64Array = cached(self, epoch, lambda: permutation(self.length, self.seed, epoch))(positions)
        return found

    @property
    def reach(self) -> int:
        return self.length

    def key(self, epoch: int) -> str:
        return f"shuffled-3(seed={self.seed})"


class Subset(Order):
    """Some of the dataset's indices, in the given order or shuffled.

    Args:
        indices: Integers (N,).
        shuffle: Whether they come in a new order each epoch.
        seed: The seed of the shuffle.

    Examples:
        >>> order = lk.Subset([7, 2, 5])
        >>> [batch.tolist() for batch in lk.Loader(range(10), 2, order=order)]
        [[7, 2], [5]]
    """

    def __init__(self, indices: Sequence[int] | Int64Array, *, shuffle: bool = False, seed: int = 0) -> None:
        chosen = as_indices("Subset", indices)
        if chosen.size and chosen.min() < 0:
            raise ValueError(f"Subset: found index {chosen.min()}, wanted indices of at least 0.")
        self._chosen = chosen.copy()
        self._shuffle = shuffle
        self._seed = seed
        self._epochs: dict[int, object] = {}

    def _details(self) -> str:
        return f", shuffled (seed {self._seed})" if self._shuffle else ""

    def size(self, epoch: int) -> int:
        return len(self._chosen)

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        if self._shuffle:
            positions = cached(self, epoch, lambda: permutation(len(self._chosen), self._seed, epoch))(positions)
        return np.take(self._chosen, positions)

    @property
    def reach(self) -> int:
        return int(self._chosen.max()) + 1 if self._chosen.size else 0

    def key(self, epoch: int) -> str:
        how = f"seed={self._seed}" if self._shuffle else "in order"
        return f"subset-3({digest(self._chosen)}, {how})"
