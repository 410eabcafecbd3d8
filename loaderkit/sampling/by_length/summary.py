"""What a plan makes of an epoch: how many batches, and how much of them is padding."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loaderkit.system.arrays import Int64Array


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSummary:
    """An epoch in numbers; `str()` says them in a few lines.

    Args:
        epoch: Which.
        ranks: How many share it.
        samples: That come, over all ranks.
        repeated: How many come a second time.
        left_out: How many do not come.
        batches: Of each rank.
        tokens: In the batches of all ranks, without padding.
        padded_tokens: What the batches hold, padding included.
        mean_batch: Mean of a batch's tokens, padding included.
        max_batch: Their maximum.
        rank_spread: How much larger than its mean a step's largest batch is, as a share, on average over the steps: about
            the time that ranks wait for the slowest.
    """

    epoch: int
    ranks: int
    samples: int
    repeated: int
    left_out: int
    batches: int
    tokens: int
    padded_tokens: int
    mean_batch: float
    max_batch: int
    rank_spread: float

    @property
    def padded_to_real(self) -> float:
        """Tokens with padding for each token without; 1 is best."""
        return self.padded_tokens / self.tokens if self.tokens else float("nan")

    def __str__(self) -> str:
        counts = [("left out", self.left_out), ("repeated", self.repeated)]
        samples = "".join(f", {count:,} {what}" for what, count in counts if count)
        lines = [
            f"epoch {self.epoch}: {self.samples:,} samples{samples}",
            f"{self.batches:,} batches on each of {self.ranks} ranks"
            if self.ranks > 1
            else f"{self.batches:,} batches",
            f"padded/real tokens {self.padded_to_real:.4f} ({self.padded_tokens:,} / {self.tokens:,})",
            f"tokens a batch: mean {self.mean_batch:,.0f}, largest {self.max_batch:,}",
        ]
        if self.ranks > 1:
            lines.append(f"the largest batch of a step is {self.rank_spread:.2%} over the step's mean")
        return "\n".join(lines)


class Batches(NamedTuple):
    """Some of an epoch's batches, those of a step next to each other.

    Args:
        padded: Tokens of each, padding included (B,).
        tokens: In them, without padding.
        samples: Different ones in them.
        repeated: How many come a second time.
    """

    padded: Int64Array
    tokens: int
    samples: int
    repeated: int


def summarise(parts: Iterable[Batches], *, epoch: int, ranks: int, size: int) -> PlanSummary:
    """Add up an epoch's batches.

    Args:
        parts: All of them, in any order of the steps.
        epoch: Which.
        ranks: Batches of a step.
        size: Samples of the epoch.
    """
    found = list(parts)
    padded = np.concatenate([np.empty(0, np.int64), *(part.padded for part in found)])
    steps = padded.reshape(-1, ranks)
    samples = sum(part.samples for part in found)
    means = steps.mean(axis=1)
    spread = np.divide(steps.max(axis=1), means, out=np.ones(len(steps)), where=means > 0) - 1
    return PlanSummary(
        epoch=epoch,
        ranks=ranks,
        samples=samples,
        repeated=sum(part.repeated for part in found),
        left_out=size - samples,
        batches=len(steps),
        tokens=sum(part.tokens for part in found),
        padded_tokens=int(padded.sum()),
        mean_batch=float(padded.mean()) if padded.size else 0.0,
        max_batch=int(padded.max(initial=0)),
        rank_spread=float(spread.mean()) if len(steps) else 0.0,
    )


def longest_times_count(lengths: Int64Array, bounds: Int64Array) -> Int64Array:
    """Return what batches (B,) hold, each padded to its longest sample.

    Args:
        lengths: Of samples, batch after batch (N,).
        bounds: Where each batch begins, and the last one ends (B + 1,); none is empty.
    """
    if len(bounds) < 2:
        return np.empty(0, np.int64)
    longest: Int64Array = np.maximum.reduceat(lengths, bounds[:-1])
    return longest * np.diff(bounds)
