"""Shuffling without a list is a shuffle: bijection, and statistics that a weaker network fails."""

import time
import tracemalloc
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from loaderkit import Cursor, Shuffled
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.sampling.permutation import FeistelPermutation, drawn_permutation
from loaderkit.system.arrays import Int64Array, UInt64Array

SMALL = 1 << 20  # from here on, Shuffled uses the network
LIMIT = 5.0  # standard deviations; the seeds are fixed, so that a pass stays a pass


def feistel(size: int, seed: int, epoch: int = 0, **rounds: int) -> Int64Array:
    """Evaluate the network at each position, at sizes too small for it as well."""
    return FeistelPermutation(size, seed, epoch, **rounds).at(np.arange(size, dtype=np.int64))


def small(size: int, seed: int, epoch: int = 0) -> Int64Array:
    return drawn_permutation(size, np.random.PCG64DXSM([seed, epoch]))


def excess(counts: Int64Array) -> float:
    """How many standard deviations the chi-square of counts is above its mean, for even chances."""
    expected = counts.sum() / len(counts)
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def displacement_excess(shuffled: Int64Array) -> float:
    """How unevenly elements are moved, over 256 distances around the circle."""
    size = len(shuffled)
    moved = (shuffled - np.arange(size)) % size
    return excess(np.bincount(moved * 256 // size, minlength=256))


def lag_deviation(shuffled: Int64Array, lag: int) -> float:
    """The correlation of neighbours, in standard deviations."""
    correlation = np.corrcoef(shuffled[:-lag], shuffled[lag:])[0, 1]
    return float(abs(correlation) * len(shuffled) ** 0.5)


def batch_mean_deviation(shuffled: Int64Array, batch: int) -> float:
    """How far the spread of batch means is from that of random batches, in standard deviations."""
    size = len(shuffled) // batch * batch
    means = shuffled[:size].reshape(-1, batch).mean(axis=1)
    wanted = (len(shuffled) ** 2 - 1) / 12 / batch * (1 - batch / len(shuffled))
    return float(abs(means.var(ddof=1) / wanted - 1) * (len(means) / 2) ** 0.5)


CASES = [
    pytest.param(small, 30_011, id="small-30011"),
    pytest.param(small, SMALL - 1, id="small-2**20-1"),
    pytest.param(feistel, 30_011, id="feistel-30011"),
    pytest.param(feistel, 250_000, id="feistel-500*500"),
    pytest.param(feistel, SMALL, id="feistel-2**20"),
    pytest.param(feistel, 3_000_017, id="feistel-3000017"),
]


@pytest.mark.parametrize("make", [small, feistel])
def test_every_size_is_permuted_one_to_one(make) -> None:
    sizes = [*range(1, 400), 1000, 1023, 1024, 1025, 9973]
    for size in sizes:
        for seed in (0, 1):
            assert np.array_equal(np.sort(make(size, seed)), np.arange(size)), (size, seed)


@pytest.mark.parametrize("size", [SMALL, SMALL + 1, 2_000_003])
def test_large_sizes_are_permuted_one_to_one(size: int) -> None:
    assert np.array_equal(np.sort(Shuffled(size, seed=5).indices(1, 0, size)), np.arange(size))


@pytest.mark.each_value
@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize(("make", "size"), CASES)
def test_statistics_are_those_of_a_random_permutation(make, size: int, seed: int) -> None:
    shuffled = make(size, seed, epoch=seed % 3)
    assert len(shuffled) == size
    assert displacement_excess(shuffled) < LIMIT
    for lag in range(1, 6):
        assert lag_deviation(shuffled, lag) < LIMIT, lag
    for batch in (32, 100):
        assert batch_mean_deviation(shuffled, batch) < LIMIT, batch


@pytest.mark.parametrize("rounds", [3, 4])
@pytest.mark.parametrize("size", [SMALL, 3_000_017])
def test_fewer_rounds_would_fail_the_displacement_test(size: int, rounds: int) -> None:
    """A check that the test above can fail."""
    assert min(displacement_excess(feistel(size, seed, rounds=rounds)) for seed in range(3)) > LIMIT


def test_small_orders_are_equally_likely() -> None:
    """All 120 orders of 5, over 12,000 epochs and over as many seeds."""
    for vary in (lambda n: small(5, 3, n), lambda n: small(5, n, 3)):
        counts = Counter(tuple(vary(number).tolist()) for number in range(12_000))
        assert len(counts) == 120
        assert abs(excess(np.array(list(counts.values())))) < LIMIT


class Coarse(np.random.PCG64DXSM):
    """A generator with 8 different words."""

    asked = 0

    def random_raw(self, size: int) -> UInt64Array:  # type: ignore[override]
        Coarse.asked += 1
        return super().random_raw(size) >> np.uint64(61) << np.uint64(61)


def test_small_orders_are_equally_likely_even_if_random_words_collide() -> None:
    """In a third of the draws two of 3 words are equal; if these kept their places, 0 would come first too often."""
    orders = [drawn_permutation(3, Coarse([1, epoch])) for epoch in range(6000)]
    counts = Counter(tuple(order.tolist()) for order in orders)
    assert Coarse.asked > 8000
    assert len(counts) == 6
    assert abs(excess(np.array(list(counts.values())))) < LIMIT


@pytest.mark.parametrize("make", [small, feistel])
def test_seeds_and_epochs_give_unrelated_orders(make) -> None:
    orders = [make(20_000, seed, epoch) for seed in range(4) for epoch in range(4)]
    for left, right in pairwise(orders):
        assert abs(np.corrcoef(left, right)[0, 1]) * 20_000**0.5 < LIMIT
        assert (left == right).sum() < 12  # fixed points are Poisson(1)


@pytest.mark.parametrize("size", [1000, SMALL + 7])
def test_any_position_can_be_asked_for_in_any_order(size: int) -> None:
    order = Shuffled(size, seed=9)
    whole = order.at(1, np.arange(size, dtype=np.int64))
    some = np.random.default_rng(0).integers(0, size, 500)
    assert np.array_equal(order.at(1, some), whole[some])
    order.at(0, some)  # another epoch in between
    assert np.array_equal(order.indices(1, 5, 50), whole[5:50])


def test_golden_orders() -> None:
    """The order is a public contract: another one needs a new version in the orders' keys."""
    assert Shuffled(10, seed=0).key(0) == "shuffled-3(seed=0)"
    assert Shuffled(10, seed=0).indices(0, 0, 10).tolist() == GOLDEN_SMALL
    assert Shuffled(10**9, seed=42).indices(3, 10**8, 10**8 + 6).tolist() == GOLDEN_FEISTEL


GOLDEN_SMALL = [0, 7, 6, 1, 9, 3, 8, 2, 4, 5]
GOLDEN_FEISTEL = [33496890, 619441538, 464726173, 836064877, 894796941, 940182108]


def test_the_first_batch_of_a_trillion_samples_costs_milliseconds_and_megabytes() -> None:
    def first_batch() -> None:
        plan = BatchPlan(order=Shuffled(10**12, seed=1), batch_size=256)
        assert len(next(plan.keys(Cursor(epoch=1, samples=7 * 10**11))).indices) == 256

    times = []
    for _ in range(7):
        start = time.perf_counter()
        first_batch()
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05
    tracemalloc.start()
    try:
        first_batch()
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
