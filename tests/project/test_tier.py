"""Which cases of a product run without `--full`."""

import itertools
import random
from typing import Any

import pytest
import tier


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sizes", [(2, 3, 4), (4, 4, 4, 2), (3, 5, 2)], ids=str)
def test_each_pair_of_values_is_in_a_chosen_case(sizes: tuple[int, ...], seed: int) -> None:
    """Also if some cases of the product are left out."""
    rows: list[Any] = [row for row in itertools.product(*map(range, sizes)) if sum(row) % 7]
    chosen = [rows[number] for number in tier.pairwise(rows, seed)]

    def pairs(cases: list[Any]) -> set[Any]:
        return {pair for row in cases for pair in itertools.combinations(enumerate(row), 2)}

    assert len(pairs(rows)) > 10
    assert pairs(chosen) == pairs(rows)
    assert len(chosen) < len(rows)
    assert [rows[number] for number in tier.pairwise(rows, seed)] == chosen


@pytest.mark.parametrize("columns", [1, 2])
def test_products_of_two_are_whole(columns: int) -> None:
    rows = random.Random(1).sample(list(itertools.product(range(4), repeat=columns)), k=4)
    assert tier.pairwise(rows, 3) == [0, 1, 2, 3]


def test_each_value_is_in_a_chosen_case_of_a_dear_test() -> None:
    rows = list(itertools.product(range(4), range(3)))
    chosen = [rows[number] for number in tier.pairwise(rows, 1, together=1)]
    assert [set(column) for column in zip(*chosen, strict=True)] == [{0, 1, 2, 3}, {0, 1, 2}]
    assert len(chosen) == 4


def test_another_seed_chooses_others() -> None:
    rows = list(itertools.product(range(4), repeat=3))
    assert len({tuple(tier.pairwise(rows, seed)) for seed in range(4)}) > 1


def test_a_law_runs_a_fifth_of_its_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "full", False)
    assert [tier.examples(count) for count in (12, 60, 100, 400)] == [12, 15, 20, 80]
    monkeypatch.setattr(tier, "full", True)
    assert tier.examples(400) == 400


@pytest.mark.parametrize("count", range(1, 12))
def test_some_stops_have_the_first_and_the_last(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(tier, "full", False)
    found = tier.some(range(count))
    assert {0, count - 1} <= set(found)
    assert len(found) <= count // 3 + 2
    monkeypatch.setattr(tier, "full", True)
    assert tier.some(range(count)) == list(range(count))
