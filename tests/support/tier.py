"""How much of the tests runs: what each change needs, or everything (`--full`), which is for the night.

conftest.py sets `full` before it collects the tests.
"""

import itertools
import random
from collections.abc import Hashable, Sequence

full = False


def examples(count: int) -> int:
    """Return how many Hypothesis examples a law runs: `count` with `--full`, else a quarter of them but at least 20."""
    return count if full else min(count, max(20, count // 4))


def pairwise(rows: Sequence[Sequence[Hashable]], seed: int) -> list[int]:
    """Choose rows so that each pair of values in two columns which some row has is in a chosen one.

    Args:
        rows: The settings of each case, one value a column.
        seed: What chooses among rows that add equally many pairs.

    Returns:
        The chosen positions, ascending.
    """
    pairs = [set(itertools.combinations(enumerate(row), 2)) or {(0, value) for value in row} for row in rows]
    missing: set[object] = set().union(*pairs)
    waiting = list(range(len(rows)))
    random.Random(seed).shuffle(waiting)
    chosen = []
    while missing:
        best = max(waiting, key=lambda number: len(pairs[number] & missing))
        waiting.remove(best)
        missing -= pairs[best]
        chosen.append(best)
    return sorted(chosen)
