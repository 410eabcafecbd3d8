"""Lengths and plans for the laws of plans by length, and checks of their batches."""

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest

from loaderkit import AttentionCost, Cursor, LengthBuckets, PackPlan, TokenBudget, World
from loaderkit.sampling.by_length.window_plan import WindowPlan
from loaderkit.sampling.plan import BatchKey

BUDGET = 40
COST = AttentionCost(2)


def lengths_of(kind: str, size: int) -> np.ndarray:
    random = np.random.default_rng(size)
    return {
        "constant": np.full(size, 7),
        "lognormal": np.minimum(random.lognormal(2, 0.8, size).astype(int), BUDGET),
        "one giant": np.where(np.arange(size) == size // 2, BUDGET, 2),
        "all ones": np.ones(size, int),
        "zeros": np.where(np.arange(size) % 3, 0, 5),
        "over half": np.full(size, BUDGET // 2 + 1),
    }[kind]


KINDS = ["constant", "lognormal", "one giant", "all ones", "zeros", "over half"]

PLANS: dict[str, Any] = {
    "buckets": lambda lengths, batch=3, **more: LengthBuckets(lengths, batch, **more),
    "buckets of one": lambda lengths, batch=1, **more: LengthBuckets(lengths, 1, **more),
    "budget": lambda lengths, batch=3, **more: TokenBudget(lengths, BUDGET + batch, **more),
    "budget of real tokens": lambda lengths, batch=3, **more: TokenBudget(
        lengths, BUDGET + batch, padded=False, max_samples=5, **more
    ),
    "packed": lambda lengths, batch=3, **more: PackPlan(lengths, BUDGET, batch, **more),
    "packed, a row a batch": lambda lengths, batch=3, **more: PackPlan(lengths, BUDGET, 1, **more),
    "budget, multiples": lambda lengths, batch=3, **more: TokenBudget(
        lengths, BUDGET + 4 * batch, multiple_of=8, max_samples=6, **more
    ),
    "buckets, balanced": lambda lengths, batch=3, **more: LengthBuckets(lengths, batch, balance=COST, **more),
    "budget, balanced": lambda lengths, batch=3, **more: TokenBudget(lengths, BUDGET + batch, balance=COST, **more),
    "packed, balanced": lambda lengths, batch=3, **more: PackPlan(lengths, BUDGET, batch, balance=COST, **more),
}


def steps(plan: Any, cursor: Cursor) -> list[list[BatchKey]]:
    """The epoch's remaining batches, of all ranks, by step."""
    ranks = [list(plan.with_world(World(rank, plan.world.size)).keys(cursor)) for rank in range(plan.world.size)]
    return [list(step) for step in zip(*ranks, strict=True)]  # strict: every rank gets the same number


def steps_if_shared(plan: WindowPlan, cursor: Cursor) -> list[list[BatchKey]] | None:
    """As `steps`; None if the plan says that the ranks can't share the end of the epoch."""
    with contextlib.suppress(ValueError):
        return steps(plan, cursor)
    with pytest.raises(ValueError, match="can't be shared evenly"):
        steps(plan, cursor)
    return None


def contents_of_steps(found: list[list[BatchKey]]) -> list[Any]:
    return [
        [
            (key.epoch, key.positions.tolist(), key.indices.tolist(), None if key.rows is None else key.rows.tolist())
            for key in step
        ]
        for step in found
    ]


def positions(found: list[list[BatchKey]]) -> list[int]:
    return [position for step in found for key in step for position in key.positions.tolist()]


def check_batches(plan: WindowPlan, found: list[list[BatchKey]]) -> None:
    for step in found:
        for key in step:
            sizes = plan.lengths[key.indices]
            assert sizes.size
            if isinstance(plan, PackPlan):
                rows = key.rows
                assert rows is not None
                assert rows[0] == 0
                assert rows[-1] == len(sizes)
                assert 0 < len(rows) - 1 <= plan.batch_size
                assert all(row.size and row.sum() <= plan.row_length for row in np.split(sizes, rows[1:-1]))
                continue
            assert key.rows is None
            if isinstance(plan, LengthBuckets):
                assert sizes.size <= max(plan.batch_size, 2 if plan.batch_size == 1 else 0)
            elif isinstance(plan, TokenBudget) and plan.padded:
                padded = -(-int(sizes.max()) // plan.multiple_of) * plan.multiple_of * sizes.size
                assert padded <= plan.max_tokens
            elif isinstance(plan, TokenBudget):
                assert sizes.sum() <= plan.max_tokens
            if isinstance(plan, TokenBudget):
                assert sizes.size <= (plan.max_samples or sizes.size)
        if isinstance(plan, PackPlan) or plan.balance:
            continue
        distinct = {tuple(key.indices.tolist()) for key in step}  # the tail "pad" may repeat a batch within a step
        sizes_of = (plan.lengths[list(indices)] for indices in distinct)
        edges = sorted((int(sizes.min()), int(sizes.max())) for sizes in sizes_of)
        assert all(low[1] <= high[0] for low, high in itertools.pairwise(edges)), "lengths of a step don't follow"
