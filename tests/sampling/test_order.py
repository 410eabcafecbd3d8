"""The laws of orders: pure, random-access, a new shuffle each epoch, keys that tell orders apart."""

import pickle
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tier import examples

from loaderkit import Cursor, Loader, Mixture, Order, Sequential, ShardOrder, Shuffled, Subset, Weighted, World
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.sampling.samplers import SamplerOrder

ORDERS: list[Order] = [
    Sequential(50),
    Shuffled(50, seed=3),
    Shuffled(2**21, seed=3),
    Subset(range(5, 50, 3)),
    Subset(range(5, 50, 3), shuffle=True, seed=4),
    Weighted(np.arange(30), seed=5),
    Weighted(np.arange(30), seed=5, replacement=False),
    Mixture([20, Sequential(7)], [3, 1], seed=6, size=90, window=16),
    SamplerOrder([3, 1, 2, 0]),
]
names = [type(order).__name__ + str(number) for number, order in enumerate(ORDERS)]


@pytest.mark.parametrize("order", ORDERS, ids=names)
def test_an_order_is_a_pure_function_of_epoch_and_position(order: Order) -> None:
    """Independent of earlier calls, at any positions, also for a copy in another process."""
    size = min(order.size(1), 3000)
    whole = order.indices(1, 0, size)
    assert whole.dtype == np.int64
    assert len(whole) == size > 0
    assert whole.min() >= 0
    assert whole.max() < order.reach
    order.indices(0, 0, 3)
    copy = pickle.loads(pickle.dumps(order))
    places = np.random.default_rng(1).integers(0, size, 40)
    assert np.array_equal(copy.at(1, places), whole[places])
    assert np.array_equal(order.at(1, places), whole[places])
    assert copy.key(1) == order.key(1)
    assert len(pickle.dumps(order)) < 2000  # what is cached does not travel


@pytest.mark.parametrize("order", ORDERS, ids=names)
def test_positions_outside_the_epoch_are_refused(order: Order) -> None:
    size = order.size(0)
    for start, stop in ((-1, 2), (0, size + 1), (3, 2)):
        with pytest.raises(IndexError, match=f"positions {start} to {stop} asked for"):
            order.indices(0, start, stop)
    assert len(order.indices(0, size, size)) == 0


def test_keys_tell_orders_apart() -> None:
    orders = [
        *ORDERS,
        Shuffled(50, seed=4),
        Subset(range(5, 50, 2)),
        Subset(range(5, 50, 3), shuffle=True, seed=5),
        Subset(list(range(5, 50, 3))[::-1]),
        Weighted(np.arange(30)[::-1].copy(), seed=5),
        Weighted(np.arange(30), seed=6),
        Weighted(np.arange(30), seed=5, size=20),
        Mixture([20, Sequential(7)], [2, 1], seed=6, size=90, window=16),
        Mixture([20, Sequential(7)], [3, 1], seed=6, size=90, window=17),
        Mixture([20, Sequential(7)], [3, 1], seed=7, size=90, window=16),
        Mixture([20, Shuffled(7)], [3, 1], seed=6, size=90, window=16),
        Mixture([Shuffled(1, seed=number) for number in range(99)], [1] * 99),
        SamplerOrder([3, 1, 0, 2]),
    ]
    keys = [order.key(0) for order in orders]
    assert len(set(keys)) == len(keys) - 1  # the two Shuffled(seed=3) differ in size, which the dataset tells
    assert max(map(len, keys)) < 400


@settings(max_examples=examples(60))
@given(size=st.integers(1, 300), seed=st.integers(0, 2**40), epoch=st.integers(0, 10**6))
def test_shuffled_gives_each_index_once_in_a_new_order(size: int, seed: int, epoch: int) -> None:
    order = Shuffled(size, seed=seed)
    now, following = order.indices(epoch, 0, size), order.indices(epoch + 1, 0, size)
    assert sorted(now.tolist()) == sorted(following.tolist()) == list(range(size))
    if size > 20:
        assert not np.array_equal(now, following)
        assert not np.array_equal(now, Shuffled(size, seed=seed + 1).indices(epoch, 0, size))


def test_subset_gives_its_indices_in_order_or_shuffled() -> None:
    chosen = [9, 2, 2, 7]
    assert Subset(chosen).indices(3, 0, 4).tolist() == chosen
    shuffled = Subset(chosen * 10, shuffle=True, seed=1)
    assert sorted(shuffled.indices(0, 0, 40).tolist()) == sorted(chosen * 10)
    assert shuffled.indices(0, 0, 40).tolist() != shuffled.indices(1, 0, 40).tolist()
    assert Subset([]).size(0) == Subset([]).reach == 0


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([[1, 2]], r"shape \(1, 2\)"),
        ([0.5], "dtype float64"),
        (np.array([True, False]), "From a boolean mask: np.flatnonzero"),
        ([3, -1], "found index -1"),
    ],
)
def test_subset_refuses_what_is_not_a_list_of_indices(indices, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Subset(indices)


@pytest.mark.parametrize("make", [Sequential, Shuffled])
@pytest.mark.parametrize("size", [-1, 2.0, True, "3"])
def test_a_size_is_an_integer(make: type, size: object) -> None:
    with pytest.raises(ValueError, match="size is"):
        make(size)


def test_an_order_for_another_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="indices up to 19, the dataset 10 samples"):
        Loader(list(range(10)), order=Sequential(20))
    with pytest.raises(ValueError, match="Weighted has 9 weights, the dataset 10 samples"):
        Loader(list(range(10)), order=Weighted([1] * 9))


@pytest.mark.parametrize(
    "order",
    [Sequential(9), Shuffled(9), ShardOrder([4, 5]), Mixture([4, 5], [1, 1])],
    ids=lambda order: type(order).__name__,
)
def test_an_order_of_fewer_samples_would_lose_the_others(order: Order) -> None:
    with pytest.raises(
        ValueError, match=rf"{type(order).__name__} is of 9 samples, the dataset has 10: .*Subset\(range\(9\)\)"
    ):
        Loader(list(range(10)), order=order)
    found = [int(batch[0]) for batch in Loader(list(range(10)), order=Subset(range(9)))]
    assert found == list(range(9))


class Reversed(Order):
    """A user's own order."""

    def size(self, epoch: int) -> int:
        return 5 + epoch

    def at(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        return 4 + epoch - positions

    def key(self, epoch: int) -> str:
        return "reversed"

    @property
    def reach(self) -> int:
        return 6


def backwards(kind: type[Order]) -> Any:
    """A user's class that reverses an order."""

    def at(self: Order, epoch: int, positions: np.ndarray) -> np.ndarray:
        return kind.at(self, epoch, self.size(epoch) - 1 - positions)

    return type("Backwards", (kind,), {"at": at, "__module__": __name__})


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    ("kind", "data"), [(Shuffled, 100), (Shuffled, 2**20), (Subset, range(100)), (ShardOrder, [60, 40])]
)
def test_a_subclass_may_override_at(kind: Any, data: Any, world: int) -> None:
    order, own = kind(data, seed=1), backwards(kind)(data, seed=1)
    last = order.size(0) - 1
    keys = list(islice(BatchPlan(order=own, batch_size=10, world=World(0, world)).keys(Cursor()), 5))
    assert len(keys) == 5
    for key in keys:
        assert key.indices.tolist() == order.at(0, last - key.positions).tolist()


def test_an_order_may_change_its_length_with_the_epoch() -> None:
    loader = Loader(list(range(6)), 2, order=Reversed())
    assert [batch.tolist() for batch in loader] == [[4, 3], [2, 1], [0]]
    assert len(loader) == 3
    assert [batch.tolist() for batch in loader] == [[5, 4], [3, 2], [1, 0]]
