"""Turns: which rank gets which batch of a step."""

import numpy as np

from loaderkit.system.arrays import Float64Array, Int64Array


def take_turns(costs: Float64Array, steps: Int64Array) -> Int64Array:
    """Return which batch of each step each rank gets (S, ranks).

    The most expensive batch of a step goes to the rank whose batches have cost least so far. So the ranks' sums are
    alike over any steps in a row, such as those of one gradient accumulation.

    Args:
        costs: The cost of each batch (S, ranks).
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
