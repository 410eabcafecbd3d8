"""The summary of an epoch under a plan: its batches and their padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loaderkit.system.arrays import Float64Array, Int64Array
from loaderkit.system.html import table


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSummary:
    """The batches of an epoch in numbers; `str()` gives a few lines of text.

    Attributes:
        epoch: Number of the epoch.
        ranks: Ranks that share it.
        samples: Different samples that the ranks deliver together.
        repeated: Samples that come a second time.
        left_out: Samples that do not come.
        batches: Batches of each rank.
        tokens: Tokens in the batches of all ranks, without padding.
        padded_tokens: The same, with padding.
        mean_batch: Mean tokens of a batch, with padding.
        max_batch: Most tokens of a batch, with padding.
        rank_spread: How far a step's largest batch exceeds the step's mean, as a share, averaged over the steps. About
            the share of time that ranks wait for the slowest. It compares tokens with padding, or costs if a function
            gives them.
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
        """Tokens with padding divided by tokens without; 1 is best."""
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

    def _repr_html_(self) -> str:
        return table("An epoch under this plan", [(line,) for line in str(self).splitlines()])


class BatchCounts(NamedTuple):
    """Counts over some batches of an epoch. The batches of one step follow each other.

    Attributes:
        padded: Tokens of each batch, with padding (B,).
        tokens: Tokens of all batches, without padding.
        samples: Different samples in the batches.
        repeated: Samples that come a second time.
        costs: The cost of each batch (B,), if a cost function is given.
    """

    padded: Int64Array
    tokens: int
    samples: int
    repeated: int
    costs: Float64Array | None = None


def summarise(parts: Sequence[BatchCounts], *, epoch: int, ranks: int, size: int) -> PlanSummary:
    """Add up counts that together cover an epoch of `size` samples."""
    padded = np.concatenate([np.empty(0, np.int64), *(part.padded for part in parts)])
    costs = [part.padded if part.costs is None else part.costs for part in parts]
    steps = np.concatenate([np.empty(0), *costs]).reshape(-1, ranks)
    samples = sum(part.samples for part in parts)
    means = steps.mean(axis=1)
    spread = np.divide(steps.max(axis=1), means, out=np.ones(len(steps)), where=means > 0) - 1
    return PlanSummary(
        epoch=epoch,
        ranks=ranks,
        samples=samples,
        repeated=sum(part.repeated for part in parts),
        left_out=size - samples,
        batches=len(steps),
        tokens=sum(part.tokens for part in parts),
        padded_tokens=int(padded.sum()),
        mean_batch=float(padded.mean()) if padded.size else 0.0,
        max_batch=int(padded.max(initial=0)),
        rank_spread=float(spread.mean()) if len(steps) else 0.0,
    )


def longest_times_count(lengths: Int64Array, bounds: Int64Array) -> Int64Array:
    """Return the tokens of batches (B,) that are padded to their longest sample.

    Args:
        lengths: Lengths of the samples, batch after batch (N,).
        bounds: Start of each batch and end of the last one (B + 1,); no batch is empty.
    """
    if len(bounds) < 2:
        return np.empty(0, np.int64)
    longest: Int64Array = np.maximum.reduceat(lengths, bounds[:-1])
    return longest * np.diff(bounds)
