"""Nodes that share a ShardOrder: each reads its own part of the shards, exactly once, at an even rate."""

import dataclasses
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tier import examples

import loaderkit as lk
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.sampling.plan import Tail
from loaderkit.testing import assert_elastic, assert_exactly_once

SHARDS, SIZE, BATCH, RANKS = 1000, 64, 4, 8


@lru_cache
def order_of(lanes: int | None = None) -> lk.ShardOrder:
    return lk.ShardOrder([SIZE] * SHARDS, lanes=lanes, window=SIZE, block=BATCH)


def positions_of(order: lk.Order, rank: int, ranks: int, batch_size: int, start: int = 0, tail: Tail = "keep") -> list:
    plan = BatchPlan(order=order, batch_size=batch_size, tail=tail, world=lk.World(rank, ranks))
    return [key.positions for key in plan.keys(lk.Cursor(samples=start))]


def shards_of_node(order: lk.ShardOrder, node: int, nodes: int, epochs: int) -> set[int]:
    """The shards that the ranks of a node read. Together they read what one rank with all their samples reads."""
    plan = BatchPlan(order=order, batch_size=RANKS * BATCH, world=lk.World(node, nodes))
    read: set[int] = set()
    for epoch in range(epochs):
        read.update(*((key.indices // SIZE).tolist() for key in plan.keys(lk.Cursor(epoch=epoch))))
    return read


def most_read(order: lk.ShardOrder, nodes: int, epochs: int = 1) -> float:
    """The largest number of shards that a node reads, over its part."""
    return max(len(shards_of_node(order, node, nodes, epochs)) for node in range(nodes)) / (SHARDS / nodes)


@pytest.mark.each_value
@pytest.mark.parametrize("nodes", [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("epochs", [1, 4])
def test_nodes_that_divide_the_lanes_read_their_part(nodes: int, epochs: int) -> None:
    """Four epochs read what one does, so a node's cache serves them all."""
    assert order_of().lanes == 64
    assert most_read(order_of(), nodes, epochs) <= 1.1


@pytest.mark.parametrize(("nodes", "lanes", "most"), [(3, 64, 1.2), (5, 64, 1.2), (7, 64, 1.2), (12, 64, 1.5), (20, 64, 1.5), (45, 256, 1.7), (53, 256, 1.7)])  # fmt: skip
def test_any_number_of_nodes_reads_little_more_than_its_part(nodes: int, lanes: int, most: float) -> None:
    """Where nodes do not divide the lanes, two of them read a lane at their border."""
    assert most_read(order_of(lanes), nodes) <= most
    assert most_read(lk.Shuffled(SHARDS * SIZE), 3) == 3  # what it is without


@pytest.mark.parametrize("nodes", [2, 3, 5, 8, 11, 16, 31, 64])
@pytest.mark.parametrize("lanes", [16, 64, 256])
def test_an_order_knows_how_much_its_nodes_read(nodes: int, lanes: int) -> None:
    """It says the lanes that a node reads; a shard on a border of lanes counts for both."""
    order = order_of(lanes)
    measured = most_read(order, nodes)
    assert order.nodes_read(nodes, RANKS) == pytest.approx(measured, rel=0.3)


def test_new_shards_are_wanted_at_an_even_rate() -> None:
    """The lanes' windows begin at different times: no burst after the first round."""
    order = order_of()
    shards = order.indices(0, 0, SHARDS * SIZE) // SIZE
    _, first = np.unique(shards, return_index=True)
    stretch = 64 * BATCH  # a turn of each lane
    new = np.bincount(first // stretch)
    turns = SIZE // BATCH  # of a lane until it wants its next shard
    assert new[turns:].max() <= 4 * 64 / turns
    assert new[:turns].sum() > 64


@pytest.mark.parametrize("lanes", [1, 16, 64])
def test_shards_in_use_are_told(lanes: int) -> None:
    order = order_of(lanes)
    shards = order.indices(0, 0, SHARDS * SIZE) // SIZE
    found, first = np.unique(shards, return_index=True)
    _, last = np.unique(shards[::-1], return_index=True)
    use = np.zeros(len(shards) + 1)
    np.add.at(use, first, 1)
    np.add.at(use, len(shards) - last, -1)
    assert len(found) == SHARDS
    assert order.shards_in_use == pytest.approx(use.cumsum().max(), rel=0.25, abs=2)


@settings(max_examples=examples(150), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=30),
    lanes=st.integers(1, 40),
    window=st.integers(1, 100),
    block=st.integers(1, 20),
    ranks=st.integers(1, 9),
    batch_size=st.integers(1, 9),
    done=st.floats(0, 1),
    tail=st.sampled_from(["keep", "drop", "pad"]),
)
def test_the_ranks_share_each_step(
    sizes: list[int], lanes: int, window: int, block: int, ranks: int, batch_size: int, done: float, tail: Any
) -> None:
    """Each step has the positions that it has in any order, each with one rank, wherever the run stands."""
    size = sum(sizes)
    start = int(done * size)
    assume(size - start >= ranks or tail != "keep")
    order = lk.ShardOrder(sizes, lanes=lanes, window=window, block=block)
    shared = [positions_of(order, rank, ranks, batch_size, start, tail) for rank in range(ranks)]
    wanted = [positions_of(lk.Sequential(size), rank, ranks, batch_size, start, tail) for rank in range(ranks)]
    for ours, plain in zip(zip(*shared, strict=True), zip(*wanted, strict=True), strict=True):
        assert [len(part) for part in ours] == [len(part) for part in plain]
        assert np.array_equal(np.sort(np.concatenate(ours)), np.sort(np.concatenate(plain)))


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_a_lane_belongs_to_one_rank(ranks: int) -> None:
    """If the ranks divide the lanes and the block is the batch; the rank takes its lanes in an order of its own."""
    order = order_of()
    owner = np.full(64, -1)
    for rank in range(ranks):
        for positions in positions_of(order, rank, ranks, BATCH)[:-2]:
            lanes = np.unique(order._turns.places(positions)[0])
            assert (owner[lanes] == -1).all() or (owner[lanes[owner[lanes] != -1]] == rank).all()
            owner[lanes] = rank
    assert (np.diff(owner) >= 0).all()  # neighbours read neighbouring lanes
    assert np.bincount(owner).tolist() == [64 // ranks] * ranks


class Sharded:
    """A dataset with shards. Its samples are their indices."""

    shard_sizes = np.array([40, 0, 61, 7, 30, 52])

    def __len__(self) -> int:
        return int(self.shard_sizes.sum())

    def __getitem__(self, index: int) -> int:
        return index


def make_loader(batch_size: int = 4, **settings: Any) -> lk.Loader:
    return lk.Loader(Sharded(), batch_size, shuffle=True, seed=3, **settings)


def test_the_laws_hold_for_nodes_that_come_and_go() -> None:
    assert_exactly_once(make_loader, worlds=(1, 2, 3, 7, 16), epochs=3)
    settings = [
        {"world_size": 3, "batch_size": 5},
        {"world_size": 5, "batch_size": 2},
        {"world_size": 2, "batch_size": 8},
    ]
    assert_elastic(make_loader, settings, stops=[1, 4, 9])


def test_a_step_is_the_same_set_of_samples_in_every_world() -> None:
    """Four ranks with batches of 6 see in each step what two ranks with 12 and one with 24 see."""
    found = []
    for ranks in (1, 2, 4):
        order = lk.ShardOrder(Sharded.shard_sizes, seed=3, block=6)
        loaders = [
            lk.Loader(Sharded(), 24 // ranks, order=order, seed=3, world=lk.World(rank, ranks)) for rank in range(ranks)
        ]
        found.append([sorted(torch.cat(step).tolist()) for step in zip(*loaders, strict=True)])
    assert found[0] == found[1] == found[2]


def on_nodes(nodes: int, **settings: Any) -> BatchPlan:
    order = lk.ShardOrder([1000] * 1000, block=256, **settings)
    return BatchPlan(order=order, batch_size=256, world=lk.World(0, nodes * RANKS, on_host=RANKS))


def test_costs_are_told_in_numbers() -> None:
    plan = on_nodes(16)
    told = "64 lanes with windows of 1,000 samples, about 147 of 1,000 shards in use"
    assert plan.order.cost(lk.World(), 256) == told
    assert plan.order.cost(plan.world, 256) == told + " over 16 nodes; a node reads up to 1 times its part of the data"
    assert lk.Shuffled(5).cost(lk.World(), 1) is None
    data = Sharded()
    assert str(lk.Loader(data, 4, shuffle=True).describe()).splitlines()[-1] == (
        "order: 1 lane with windows of 256 samples, about 5 of 5 shards in use"
    )
    assert lk.Loader(data, 4).describe().order is None


def test_lanes_that_are_too_few_for_the_nodes_are_warned_of() -> None:
    assert on_nodes(64).remark() is None
    remark = on_nodes(64, lanes=16).remark()
    assert remark is not None
    assert remark.startswith(
        "ShardOrder: with 16 lanes a node reads up to 4 times its part of the data on 64 nodes. With 64 it"
    )
    assert "is 1 times, and about 147 shards are in use over all nodes, not 37." in remark
    assert "order=lk.ShardOrder(dataset.shard_sizes, lanes=64, block=256)" in remark
    alone = dataclasses.replace(on_nodes(64, lanes=16), world=lk.World(0, 512))  # nothing is known of the nodes
    assert alone.remark() is None
    loader = lk.Loader(
        Sharded(),
        4,
        order=lk.ShardOrder(Sharded.shard_sizes, lanes=2, window=8, block=4),
        world=lk.World(0, 4, on_host=1),
    )
    with pytest.warns(UserWarning, match="with 2 lanes a node reads up to 2 times its part of the data on 4 nodes"):
        next(iter(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(lk.Loader(Sharded(), 4, shuffle=True, world=lk.World(0, 4, on_host=2))))
