"""The laws of balanced plans: the batches of a step cost about the same on all ranks. Exactness is tested with all plans by length."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from plan_checks import contents_of_steps, positions, steps

import loaderkit as lk
from loaderkit import AttentionCost, Cursor, LengthBuckets, PackPlan, StateError, TokenBudget, World
from loaderkit.sampling.by_length.window_plan import WindowPlan

ROW, SIZE = 4096, 12_000
COST = AttentionCost(128)


def lengths_of(sigma: float) -> Any:
    random = np.random.default_rng(0)
    return np.clip(random.lognormal(np.log(300), sigma, SIZE).astype(np.int64), 1, ROW)


def costs(plan: WindowPlan, ranks: int, cost: Any) -> Any:
    """What each batch of an epoch costs (S, ranks), counted from the batches themselves."""

    def of(key: Any) -> float:
        sizes = plan.lengths[key.indices]
        if key.rows is not None:
            rows = np.split(sizes, key.rows[1:-1])
            padding = [plan.row_length - int(row.sum()) for row in rows]
            return float(cost(sizes).sum() + sum(cost(np.array([left]))[0] for left in padding if left))
        return float(len(sizes) * cost(sizes.max(keepdims=True))[0])

    found = steps(plan.with_world(World(0, ranks)), Cursor(epoch=1))
    assert sorted(positions(found)) == list(range(SIZE))
    return np.array([[of(key) for key in step] for step in found])


def slowest(found: Any) -> float:
    """The time of an epoch whose steps wait for the slowest rank, over that of ranks that never wait."""
    return float(found.max(axis=1).sum() / found.mean(axis=1).sum())


def summed(found: Any, steps_each: int) -> Any:
    """The cost of each gradient accumulation, by rank."""
    return found[: len(found) // steps_each * steps_each].reshape(-1, steps_each, found.shape[1]).sum(axis=1)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sigma", [1.0, 1.4])
@pytest.mark.parametrize("ranks", [2, 8])
def test_rows_of_one_step_cost_about_the_same(ranks: int, sigma: float, rows: int) -> None:
    lengths = lengths_of(sigma)
    plain, balanced = (costs(PackPlan(lengths, ROW, rows, balance=cost), ranks, COST) for cost in (None, COST))
    assert slowest(plain) > 1.05
    assert slowest(balanced) < 1.005 + (ranks > 2) * 0.02
    assert slowest(balanced) - 1 < (slowest(plain) - 1) / 10
    assert balanced.max(axis=1).sum() < plain.max(axis=1).sum()  # the time of the epoch


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("ranks", [3, 8])
def test_batches_of_a_budget_cost_about_the_same(ranks: int, padded: bool) -> None:
    """Without balance, the batches that were halved share steps with whole ones."""
    plain, balanced = (
        costs(TokenBudget(lengths_of(1.0), 2 * ROW, padded=padded, window=2000, balance=cost), ranks, COST)
        for cost in (None, COST)
    )
    assert slowest(balanced) - 1 < 0.75 * (slowest(plain) - 1)


def test_buckets_wait_no_longer_than_without_balance() -> None:
    plain, balanced = (
        costs(LengthBuckets(lengths_of(1.0), 16, window=2000, balance=cost), 4, COST) for cost in (None, COST)
    )
    assert slowest(balanced) <= slowest(plain)
    assert slowest(summed(balanced, 4)) < slowest(summed(plain, 4))


@pytest.mark.parametrize("accumulated", [2, 4, 16])
@pytest.mark.parametrize("make", [PackPlan, TokenBudget, LengthBuckets])
def test_sums_over_an_accumulation_are_alike_whatever_its_length(make: Any, accumulated: int) -> None:
    """A rank that always got the dearest batch of a step would be behind by the sum of the differences."""
    lengths = lengths_of(1.0)
    size = 16 if make is LengthBuckets else ROW
    found = costs(make(lengths, size, window=2000, balance=COST), 4, COST)
    dearest_first = -np.sort(-found, axis=1)
    assert slowest(summed(dearest_first, accumulated)) > slowest(summed(found, accumulated))
    assert slowest(summed(found, accumulated)) < slowest(found)
    assert found.sum(axis=0).max() < dearest_first.sum(axis=0).max()


def test_a_step_has_as_many_rows_on_all_ranks() -> None:
    for ranks, rows in itertools.product((2, 3), (2, 4)):
        plan = PackPlan(lengths_of(1.0), ROW, rows, window=1500, balance=COST).with_world(World(0, ranks))
        counts = [{len(key.rows) for key in step} for step in steps(plan, Cursor())]
        assert len(counts) > 10
        assert all(len(count) == 1 for count in counts)


def test_dear_steps_come_anywhere_and_in_another_order_each_epoch() -> None:
    for shuffle in (True, False):
        plan = PackPlan(lengths_of(1.0), ROW, 2, balance=COST, shuffle=shuffle)
        epochs = []
        for epoch in range(2):
            found = steps(plan, Cursor(epoch=epoch))
            sizes = np.array([np.square(plan.lengths[step[0].indices]).sum() for step in found], dtype=float)
            assert abs(np.corrcoef(np.arange(len(sizes)), sizes)[0, 1]) < 0.2
            epochs.append(contents_of_steps(found))
        assert (epochs[0] != epochs[1]) == shuffle or not shuffle


def test_a_tail_leaves_out_dear_rows_as_often_as_cheap_ones() -> None:
    lengths = lengths_of(1.0)[:1200]
    kept = PackPlan(lengths, ROW, 7, tail="drop", balance=COST).with_world(World(0, 8))
    plain = PackPlan(lengths, ROW, 7, tail="drop").with_world(World(0, 8))
    delivered = [sorted(positions(steps(plan, Cursor()))) for plan in (kept, plain)]
    assert delivered[0] == delivered[1]
    assert 0 < len(delivered[0]) < 1200


def test_a_function_of_lengths_and_one_that_repeats_it_give_the_same_order() -> None:
    lengths = lengths_of(1.0)
    plans = [
        PackPlan(lengths, ROW, balance=balance)
        for balance in (COST, lambda n: n * (12 * 128 + n), lambda n: n * (12 * 128.0 + n))
    ]
    found = [contents_of_steps(steps(plan.with_world(World(0, 4)), Cursor())) for plan in plans]
    assert found[0] == found[1] == found[2]
    other = PackPlan(lengths, ROW, balance=lambda n: n)
    assert contents_of_steps(steps(other.with_world(World(0, 4)), Cursor())) != found[0]
    assert pickle.loads(pickle.dumps(plans[0])).key(0) == plans[0].key(0)


def test_a_state_of_another_cost_is_refused_and_one_without_cost_has_its_old_name() -> None:
    lengths = lengths_of(1.0)

    def loader(balance: Any) -> lk.Loader:
        return lk.Loader(range(SIZE), plan=PackPlan(lengths, ROW, balance=balance), collate_fn=list)

    state = loader(COST).state_dict()
    loader(AttentionCost(128)).load_state_dict(state)
    for other in (None, AttentionCost(64), AttentionCost(128, causal=False), lambda n: n):
        with pytest.raises(StateError, match="hidden_size=128, causal=True"):
            loader(other).load_state_dict(state)
    assert "balance" not in PackPlan(lengths, ROW).key(0)


def test_a_summary_counts_costs() -> None:
    plan = PackPlan(lengths_of(1.0), ROW).with_world(World(0, 8))
    balanced = PackPlan(lengths_of(1.0), ROW, balance=COST).with_world(World(0, 8))
    assert plan.summary().rank_spread == 0  # in tokens
    assert plan.summary(cost=COST).rank_spread > 0.2
    assert 0 < balanced.summary().rank_spread < 0.03
    found = costs(balanced, 8, COST)
    assert balanced.summary(1).rank_spread == pytest.approx(float((found.max(1) / found.mean(1)).mean() - 1))


def test_the_cost_of_attention_is_that_of_the_paper() -> None:
    """Operations of a layer: 24 h^2 a token for its matrices, 4 h for each pair of tokens, of which a causal model needs half."""
    for hidden, tokens in itertools.product((64, 1024), (1, 1000)):
        whole = 24 * hidden**2 * tokens + 4 * hidden * tokens**2
        half = 24 * hidden**2 * tokens + 2 * hidden * tokens**2
        one = np.array([tokens])
        assert AttentionCost(hidden, causal=False)(one)[0] * 4 * hidden == whole
        assert AttentionCost(hidden)(one)[0] * 2 * hidden == half


@pytest.mark.parametrize(
    ("balance", "error", "words"),
    [
        (7, TypeError, "balance is 7, wanted lk.AttentionCost"),
        (lambda n: n.sum(), ValueError, r"gives shape \(\)"),
        (lambda n: n - 5, ValueError, "gives -4 for length 1, wanted a finite number of at least 0"),
        (lambda n: n * np.nan, ValueError, "gives nan for length 1"),
        (lambda n: n.astype(str), ValueError, "dtype <U21"),
    ],
    ids=["a number", "one cost", "negative", "nan", "texts"],
)
def test_a_bad_cost_is_refused_where_it_is_given(balance: Any, error: Any, words: str) -> None:
    for make in (LengthBuckets, TokenBudget, PackPlan):
        with pytest.raises(error, match=words):
            make([3, 4, 9], 10, balance=balance)


def test_a_bad_width_is_refused() -> None:
    for width in (0, 2.5, True):
        with pytest.raises(ValueError, match="hidden_size is"):
            AttentionCost(width)  # type: ignore[arg-type]
