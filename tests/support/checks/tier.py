"""How much of the tests runs: what each change needs, or everything (`--full`), which is for the night.

conftest.py sets `full` before it collects the tests.
"""

import itertools
import random
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

_Thing = TypeVar("_Thing")
full = False


def examples(count: int) -> int:
    """Return how many Hypothesis examples a law runs: `count` with `--full`, else a fifth of them but at least 15."""
    return count if full else min(count, max(15, count // 5))


def some(things: Iterable[_Thing]) -> list[_Thing]:
    """Return all with `--full`, else every third, and the last: places where a run stops, sizes."""
    whole = list(things)
    return whole if full else [each for number, each in enumerate(whole) if number % 3 == 0 or number == len(whole) - 1]


def pairwise(rows: Sequence[Sequence[Hashable]], seed: int, together: int = 2) -> list[int]:
    """Choose rows so that each pair of values in two columns which some row has is in a chosen one.

    Args:
        rows: The settings of each case, one value a column.
        seed: What chooses among rows that add equally many pairs.
        together: 2, or 1: each value alone is in a chosen row.

    Returns:
        The chosen positions, ascending.
    """
    pairs = [set(itertools.combinations(enumerate(row), min(together, len(row)))) for row in rows]
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
