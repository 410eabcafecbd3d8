"""Plans: which samples of an order share a batch, and which rank gets it."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.fingerprint import fingerprint
from loaderkit.sampling.keys import Keys
from loaderkit.sampling.order import Order
from loaderkit.sampling.skips import Skips
from loaderkit.system.arrays import Int64Array
from loaderkit.system.world import World

Tail = Literal["keep", "drop", "pad"]


@dataclass(slots=True, eq=False)
class BatchKey:
    """What a worker needs to make a batch: the positions and indices of its samples.

    Attributes:
        epoch: Number of the epoch.
        positions: Positions in the order (B,); the samples' seeds come from these.
        indices: Indices in the dataset (B,) int64; or other keys (B,) that a user's sampler gives, as objects.
        rows: For packed rows, the start of each row and the end of the last one (R + 1,).
    """

    epoch: int
    positions: Int64Array
    indices: Keys
    rows: Int64Array | None = None


@dataclass(frozen=True, slots=True)
class PlanPart:
    """A range of positions with one order and one collate function.

    Attributes:
        order: The order of the samples, by positions of the whole plan; None if the plan has none.
        end: The position after the part's last; None if the plan has only one part.
        collate_fn: Makes its batches; None means the Loader's.
    """

    order: Order | None
    end: int | None = None
    collate_fn: Callable[[list[Any]], object] | None = None


class Cuts(NamedTuple):
    """How a plan cuts long samples into pieces.

    Attributes:
        lengths: The length of each sample of the dataset (N,).
        piece_length: The length of each piece, except the last one of a sample, which may be shorter.
    """

    lengths: Int64Array
    piece_length: int


class Plan(ABC):
    """How an epoch's samples become batches for each rank.

    It is a pure function of a cursor.
    A step is one batch for each rank. `lk.LengthBuckets`, `lk.TokenBudget` and `lk.PackPlan` are plans; a Loader without
    `plan=` makes batches of a fixed size. Subclass it for a plan of your own.

    Attributes:
        order: The order of the samples; None if there is none. Bad samples are replaced from it.
        lengths: The length of each sample of the dataset (N,); None if the plan does not know them.

    Examples:
        >>> plan = lk.LengthBuckets([5, 2, 5, 2], batch_size=2, shuffle=False)
        >>> plan.batches(epoch=0)
        2
        >>> [key.indices.tolist() for key in plan.keys(lk.Cursor())]
        [[1, 3], [0, 2]]
    """

    world: World
    order: Order | None
    lengths: Int64Array | None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Not attributes of the class: a dataclass would take their values for defaults of its fields.
            if name in ("order", "lengths"):
                return None
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @abstractmethod
    def with_world(self, world: World) -> Self:
        """Return the same plan for another world."""

    @abstractmethod
    def key(self, epoch: int) -> str:
        """Return a text that names the order of the samples: its version and all settings that shape it."""

    def identity(self, cursor: Cursor, dataset: object, size: int) -> tuple[str, str]:
        """Return texts that name the dataset and the order that a cursor belongs to, for the cursor's state."""
        return fingerprint(dataset, size), self.key(cursor.epoch)

    def explain(self, before: str, now: str) -> str:
        """Return sentences for an error that say how two datasets differ, given their texts from `identity`."""
        return ""

    @property
    @abstractmethod
    def step(self) -> int:
        """Return the size of a full step over all ranks, in samples; in batches or tokens if a plan has no batch size.

        If it changes, `cursor.batches` counts steps of another size.
        """

    @abstractmethod
    def remaining(self, cursor: Cursor) -> int:
        """Return the number of batches that each rank has left in the cursor's epoch."""

    @abstractmethod
    def advance(self, cursor: Cursor, batches: int = 1) -> Cursor:
        """Return the cursor `batches` later; after an epoch's last batch it is the next epoch's start."""

    @abstractmethod
    def keys(self, cursor: Cursor) -> Iterator[BatchKey]:
        """Yield this rank's batches from the cursor to the end of its epoch."""

    def next_epoch(self, cursor: Cursor) -> Cursor:
        """Return the start of the epoch after the cursor's."""
        return cursor.next_epoch()

    @property
    def follows_order(self) -> bool:
        """Return whether batches are cut from the order one after another."""
        return False

    def is_same_each_epoch(self) -> bool:
        """Return whether each epoch is known to have the same batches in the same order."""
        return False

    @property
    def makes_rows(self) -> bool:
        """Return whether a batch is a list of rows, each of several samples."""
        return False

    def cuts(self) -> Cuts | None:
        """Return how the plan cuts samples; its indices are then those of the pieces. None if it cuts none."""
        return None

    def parts(self) -> list[PlanPart]:
        """Return the parts of the positions whose batches are made in different ways."""
        return [PlanPart(self.order)]

    def without(self, skips: Skips) -> "Plan":
        """Return a plan that leaves out stretches of the order and closes the gaps.

        Raises:
            ValueError: If this plan cannot.
        """
        raise ValueError(
            f"loader: {type(self).__name__} cannot leave out a stretch of the order, wanted batches of one size, cut from "
            "the order one after another. Let the dataset raise an error for the samples, and give "
            "bad_samples=lk.BadSamples('skip')."
        )

    def why_over(self, cursor: Cursor) -> str | None:
        """Say why neither a cursor's epoch nor a later one has a batch left; None if one may have."""
        return None

    def check_size(self, size: int) -> None:
        """Raise a ValueError if a dataset of this many samples is not the one that the plan is for."""
        if self.lengths is not None and len(self.lengths) != size:
            raise other_lengths(self, len(self.lengths), size)

    def check_cursor(self, cursor: Cursor) -> None:  # noqa: B027 - a plan need not check
        """Raise a StateError unless this plan can have given a cursor of a state. It must not read the whole epoch."""

    def remark(self) -> str | None:
        """Return a warning about the settings on these ranks, or None."""
        return None

    def placed(self, cursor: Cursor) -> Cursor:
        """Return the cursor with `batches` counted in batches of this plan.

        After a resume with another world or batch size, a Trainer that counts only batches then sees the same fraction
        of the epoch done.
        """
        done = self.batches(cursor.epoch) - self.remaining(cursor)
        # A window of a plan by length may have more steps if it was arranged twice.
        return dataclasses.replace(cursor, batches=max(0, done))

    def _skip_epochs(self, cursor: Cursor, batches: int) -> tuple[Cursor, int]:
        """Move past the epochs that end within `batches`. Return the cursor there, and the batches that are left to go."""
        while (left := self.remaining(cursor)) <= batches:
            if left == 0 and cursor.samples == 0:
                return cursor, 0  # no epoch has batches
            batches -= left
            cursor = self.next_epoch(cursor)
        return cursor, batches

    def batches(self, epoch: int) -> int:
        """Return the number of batches of each rank in a whole epoch."""
        return self.remaining(Cursor(epoch=epoch))

    def batch(self, cursor: Cursor, ahead: int = 0) -> BatchKey:
        """Return a batch of this rank.

        Args:
            cursor: The position in the epoch.
            ahead: Batches to skip after the cursor.

        Raises:
            IndexError: If the cursor's epoch has no such batch.
        """
        left = self.remaining(cursor)
        if not 0 <= ahead < left:
            raise IndexError(f"plan: batch {ahead} asked for, wanted one of the {left} left in epoch {cursor.epoch}.")
        return next(self.keys(self.advance(cursor, ahead)))


def other_lengths(plan: Plan, found: int, size: int) -> ValueError:
    """Return the error of a plan that has the lengths of another number of samples than the dataset."""
    return ValueError(
        f"loader: {type(plan).__name__} has the lengths of {found:,} samples, the dataset has {size:,}. Give it the length of "
        "each sample. To leave some out, give it order=Subset(...)."
    )
