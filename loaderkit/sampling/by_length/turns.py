"""Turns: which rank gets which batch of a step."""

import numpy as np

from loaderkit.system.arrays import Float64Array, Int64Array


def take_turns(costs: Float64Array, steps: Int64Array) -> Int64Array:
    """Return which batch of each step (S, ranks) each rank gets.

    The dearest batch goes to the rank that has had the least so far. The sums of the ranks are then alike over any steps that follow each
    other, such as those of one gradient accumulation.

    Args:
        costs: Of the batches (S, ranks).
        steps: Numbers of the steps (S,), in the order in which they come.
    """
    ranks = costs.shape[1]
    done, turns = np.zeros(ranks), np.empty(costs.shape, dtype=np.int64)
    dearest = np.argsort(-costs, axis=1, kind="stable")
    for step in steps.tolist():
        turn = turns[step]
        turn[done.argsort(kind="stable")] = dearest[step]
        done += costs[step, turn]
    return turns
