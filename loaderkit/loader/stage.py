"""A stage of a training, and what it reads."""

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np

from loaderkit.system.checks import plain_integer
from loaderkit.system.html import table
from loaderkit.system.world import World

Weights = Mapping[str, float | tuple[float, float]]


@dataclass(frozen=True)
class Stage:
    """A part of a training with its own sources and weights. See `Stages`.

    It may also have its own batch size and collate function.

    Args:
        weights: The weight of each source by name, above 0; they need not sum to 1. A pair is the weight at the stage's
            start and at its end: the source's share then changes linearly. One of the pair may be 0. A single name is a
            stage of that source alone.
        batch_size: Samples in a batch of each rank.
        samples: Samples of the stage, of all ranks together.
        steps: The stage's length in steps of `global_batch_size`, instead of `samples`.
        global_batch_size: Samples in a step of all ranks together, instead of `batch_size`. The number of ranks must divide it.
        collate_fn: Makes the stage's batches; by default the Loader's `collate_fn` does.

    Raises:
        ValueError: If a weight or number is out of range, or the length or the batch size is missing or given twice.

    Examples:
        >>> lk.Stage({"web": (3, 1), "books": 1}, 32, samples=1_000_000).size
        1000000
        >>> lk.Stage("books", steps=100, global_batch_size=512).size
        51200
    """

    weights: str | Weights
    batch_size: int | None = None
    _: KW_ONLY
    samples: int | None = None
    steps: int | None = None
    global_batch_size: int | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "samples", "steps", "global_batch_size"):
            object.__setattr__(self, name, number := plain_integer(getattr(self, name)))
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise ValueError(f"Stage: {name} is {number!r}, wanted an integer of at least 1.")
        if (self.samples is None) == (self.steps is None):
            raise ValueError(
                f"Stage: samples={self.samples} and steps={self.steps}, wanted one of them: the stage's length."
            )
        if (self.batch_size is None) == (self.global_batch_size is None):
            raise ValueError(
                f"Stage: batch_size={self.batch_size} and global_batch_size={self.global_batch_size}, wanted one of them."
            )
        if self.steps is not None and self.global_batch_size is None:
            raise ValueError(
                f"Stage: steps={self.steps} with batch_size={self.batch_size} of each rank, which is another number of samples "
                "on other ranks. Give samples=, or global_batch_size= instead of batch_size."
            )
        if self.collate_fn is not None and not callable(self.collate_fn):
            raise ValueError(f"Stage: collate_fn is {self.collate_fn!r}, wanted a function.")
        if not isinstance(self.weights, str | Mapping) or not self.weights:
            raise ValueError(f"Stage: weights is {self.weights!r}, wanted a dict of weights by name, or a name.")
        for name, weight in self.weights_by_name.items():
            if not all(isinstance(end, int | float | np.number) and 0 <= end < math.inf for end in weight) or not any(
                weight
            ):
                raise ValueError(
                    f"Stage: the weight of {name!r} is {weight[0] if weight[0] is weight[1] else weight!r}, wanted a number above 0, "
                    "or a pair of numbers of at least 0, not both 0. Leave out a source that the stage does not read."
                )
        for end, at in enumerate(("start", "end")):
            if not any(weight[end] for weight in self.weights_by_name.values()):
                raise ValueError(f"Stage: all weights are 0 at the stage's {at}, wanted one above 0.")

    @property
    def size(self) -> int:
        """Samples of the stage, of all ranks together."""
        return self.samples or (self.steps or 0) * (self.global_batch_size or 0)

    @property
    def weights_by_name(self) -> dict[str, tuple[float, float]]:
        """The weight of each source at the stage's start and at its end."""
        given = {self.weights: 1} if isinstance(self.weights, str) else self.weights
        return {
            name: (weight[0], weight[1]) if isinstance(weight, tuple | list) and len(weight) == 2 else (weight, weight)
            for name, weight in given.items()
        }

    def batch_size_of(self, world: World) -> int:
        """Return the samples in a batch of each rank.

        Raises:
            ValueError: If the ranks can't share a step evenly.
        """
        if self.batch_size is not None:
            return self.batch_size
        each, rest = divmod(self.global_batch_size or 0, world.size)
        if rest or not each:
            raise ValueError(
                f"Stage: global_batch_size is {self.global_batch_size}, wanted a multiple of the {world.size} ranks. Use another "
                "number of ranks, or give batch_size=."
            )
        return each


class StageRow(NamedTuple):
    """What a stage reads from a source.

    Attributes:
        stage: Number of the stage.
        source: Name of the source.
        samples: Samples that the stage reads from the source.
        tokens: Tokens in these samples, from the stride of a TokenDataset or the mean of `lengths()`; None if unknown.
        first_pass: Passes over the source before the stage; 2.5 is half of the third pass.
        last_pass: The same after the stage.
    """

    stage: int
    source: str
    samples: int
    tokens: int | None
    first_pass: float
    last_pass: float


@dataclass(frozen=True, slots=True)
class StagesPlan:
    """What each stage reads; `str()` gives a few lines of text.

    Attributes:
        stages: The stages.
        rows: A row for each stage and each of its sources.
    """

    stages: tuple[Stage, ...]
    rows: tuple[StageRow, ...]

    def __str__(self) -> str:
        lines = []
        for number, stage in enumerate(self.stages):
            how = f"batches of {stage.batch_size}" if stage.batch_size else f"steps of {stage.global_batch_size}"
            lines.append(f"stage {number}: {stage.size:,} samples in {how}")
            for row in self.rows:
                if row.stage == number:
                    tokens = "" if row.tokens is None else f", {row.tokens:,} tokens"
                    passes = f"passes {row.first_pass:,.2f} to {row.last_pass:,.2f}"
                    lines.append(f"  {row.source}: {row.samples:,} samples{tokens}, {passes}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return table("Training in stages", [(line,) for line in str(self).splitlines()])
