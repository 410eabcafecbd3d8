"""The laws of plans that leave out stretches of their order, over full grids; no data is read."""

import dataclasses
import itertools

import numpy as np
import pytest
from plan_checks import steps

from loaderkit import Cursor, Sequential, ShardOrder, Shuffled, World
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import Plan, Tail
from loaderkit.sampling.skips import Skips

SIZES = [1, 2, 5, 12, 31]
TAILS: list[Tail] = ["keep", "drop", "pad"]
GEOMETRIES = [(world, batch) for world in (1, 2, 3) for batch in (1, 2, 4)]


def gaps_of(size: int) -> list[list[tuple[int, int]]]:
    """Single gaps at the start, in the middle and at the end, of one sample and of many; and several at once."""
    ends = sorted({0, 1, size // 3, size // 2, size - 2, size - 1, size} & set(range(size + 1)))
    single = [[pair] for pair in itertools.combinations(ends, 2)]
    return [*single, [(1, 2), (3, 5), (size - 3, size - 1)], [(0, 1), (size - 1, size)]]


def make(order: Order, skips: Skips, world: int, batch: int | None, tail: Tail) -> Plan:
    return BatchPlan(order=order, batch_size=batch, tail=tail, world=World(0, world)).without(skips)


@pytest.mark.parametrize("tail", TAILS)
def test_what_stays_comes_in_full_steps_and_exactly_once(tail: Tail) -> None:
    """Every size, gap, world and batch size: the batches are those of a plan over the samples that stay."""
    cells = 0
    for size in SIZES:
        for gaps in gaps_of(size):
            skips = Skips.of((0, start, stop) for start, stop in gaps if 0 <= start < stop <= size)
            left_out = {position for _, start, stop in skips.stretches for position in range(start, stop)}
            stay = [position for position in range(size) if position not in left_out]
            for world, batch in GEOMETRIES:
                if tail == "keep" and len(stay) < world:
                    continue
                plan = make(Sequential(size), skips, world, batch, tail)
                bare = BatchPlan(order=Sequential(len(stay)), batch_size=batch, tail=tail, world=World(0, world))
                found, wanted = steps(plan, Cursor()), bare.batches(0)
                assert len(found) == wanted == plan.remaining(Cursor()) == plan.batches(0)
                flat = [key.indices.tolist() for step in found for key in step]
                assert flat == [
                    [stay[place] for place in key.indices]
                    for step in zip(
                        *(bare.with_world(World(rank, world)).keys(Cursor()) for rank in range(world)), strict=True
                    )
                    for key in step
                ]
                if tail == "keep":
                    assert list(itertools.chain(*flat)) == stay
                    # The random numbers come from the positions, and these stay as they were.
                    assert [p for step in found for key in step for p in key.positions.tolist()] == stay
                cells += 1
    assert cells > 300


@pytest.mark.parametrize("tail", TAILS)
def test_a_run_continues_anywhere_on_other_ranks_and_batch_sizes(tail: Tail) -> None:
    cells = 0
    for size in (2, 7, 13):
        for gaps in gaps_of(size):
            skips = Skips.of((0, start, stop) for start, stop in gaps if 0 <= start < stop <= size)
            left_out = {position for _, start, stop in skips.stretches for position in range(start, stop)}
            for (world, batch), (new_world, new_batch) in itertools.product([(1, 2), (2, 1), (3, 2)], repeat=2):
                plan = make(Sequential(size), skips, world, batch, tail)
                new = make(Sequential(size), skips, new_world, new_batch, tail)
                if tail == "keep" and size - len(left_out) < world:
                    continue
                whole, cursor = steps(plan, Cursor()), Cursor()
                for stop in range(len(whole)):
                    done = {p for step in whole[:stop] for key in step for p in key.positions.tolist()}
                    assert cursor == plan.advance(Cursor(), stop)
                    assert plan.remaining(cursor) == len(whole) - stop
                    assert plan.placed(cursor).batches == stop
                    assert done == {p for p in range(cursor.samples) if p not in left_out}
                    left = size - len(left_out) - len(done)
                    if not (tail == "keep" and left < new_world):
                        rest = [p for step in steps(new, cursor) for key in step for p in key.positions.tolist()]
                        wanted = sorted(set(range(size)) - left_out - done)
                        if tail == "keep":
                            assert rest == wanted
                        elif tail == "drop":
                            assert rest == wanted[: len(wanted) - left % (new_world * new_batch)]
                        else:
                            assert rest[: len(wanted)] == wanted
                            assert len(rest) == left + -left % (new_world * new_batch)
                        cells += 1
                    cursor = plan.advance(cursor)
                if whole:
                    assert cursor == Cursor(epoch=1)  # the next epoch is whole
                    assert plan.remaining(cursor) == plan.batches(1)
    assert cells > 500


@pytest.mark.parametrize("order", [Shuffled(60, seed=3), ShardOrder([20, 10, 30], seed=3, lanes=4, window=8, block=2)])
def test_every_order_gives_what_stays(order: Order) -> None:
    """A step of a ShardOrder holds the same samples on any ranks; away from gaps each rank keeps to its lanes."""
    skips = Skips.of([(1, 7, 19), (1, 40, 41)])
    wanted = np.delete(order.indices(1, 0, 60), [*range(7, 19), 40]).tolist()
    for world, batch in GEOMETRIES:
        found = steps(make(order, skips, world, batch, "keep"), Cursor(epoch=1))
        stretch = iter(wanted)
        for step in found:
            indices = sorted(index for key in step for index in key.indices.tolist())
            assert indices == sorted(itertools.islice(stretch, len(indices)))
            for key in step:
                assert order.at(1, key.positions).tolist() == key.indices.tolist()
        assert next(stretch, None) is None
    bare = BatchPlan(order=order, batch_size=4, world=World(1, 2))
    without = list(bare.without(Skips.of([(0, 48, 56)])).keys(Cursor()))
    for key, other in zip(without[:6], bare.keys(Cursor()), strict=False):
        assert key.indices.tolist() == other.indices.tolist()


def test_stretches_are_joined_sorted_and_cut() -> None:
    skips = Skips.of([(1, 5, 9), (0, 8, 9), (1, 9, 12), (0, 3, 3), (0, 1, 4), (0, 2, 3)])
    assert skips.stretches == ((0, 1, 4), (0, 8, 9), (1, 5, 12))
    assert skips.ahead_of(0, 3).stretches == ((0, 3, 4), (0, 8, 9), (1, 5, 12))
    assert skips.ahead_of(1, 12) == Skips()
    assert skips | Skips.of([(0, 4, 8)]) == Skips.of([(0, 1, 9), (1, 5, 12)])
    assert skips.since(1) == ((1, 5, 12),)


def test_epochs_follow_each_other_as_iterating_does() -> None:
    plan = make(Shuffled(10, seed=3), Skips.of([(1, 0, 4), (2, 9, 10)]), 2, 2, "keep")
    counts = [plan.batches(epoch) for epoch in range(4)]
    assert counts == [3, 2, 3, 3]
    cursor = Cursor()
    for number in range(sum(counts)):
        assert plan.advance(Cursor(), number) == cursor
        assert dataclasses.replace(cursor, batches=0) == dataclasses.replace(plan.placed(cursor), batches=0)
        cursor = plan.advance(cursor)
    assert cursor == Cursor(epoch=4)
