"""The laws of plans, over full grids: no data is read, so every case can be tried."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_checks import steps
from tier import examples

from loaderkit import Cursor, Sequential, Shuffled, World
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.sampling.plan import Tail

SIZES = [*range(1, 41), 97, 101]
BATCH_SIZES = range(1, 10)
WORLDS = range(1, 5)
TAILS: list[Tail] = ["keep", "drop", "pad"]
CELLS = sum(SIZES) + len(SIZES)  # pairs (size, samples consumed)


def make_plan(size: int, batch_size: int | None, world: int = 1, tail: Tail = "keep", rank: int = 0) -> BatchPlan:
    return BatchPlan(order=Sequential(size), batch_size=batch_size, tail=tail, world=World(rank, world))


def violations(size: int, samples: int, batch_size: int, world: int, tail: Tail) -> Iterator[str]:
    """Check all batches that follow after `samples` samples of an epoch."""
    plan = make_plan(size, batch_size, world, tail)
    cursor = Cursor(samples=samples)
    left, full = size - samples, batch_size * world
    rest = steps(plan, cursor)
    found = [key.positions.tolist() for step in rest for key in step]
    flat = sorted(position for positions in found for position in positions)
    if plan.remaining(cursor) != len(rest):
        yield f"remaining() is {plan.remaining(cursor)}, there are {len(rest)} batches"
    counts = [[len(key.positions) for key in step] for step in rest]
    if any(max(step) - min(step) > 1 or min(step) < 1 for step in counts):
        yield f"sizes within a step: {counts}"
    if tail == "keep":
        if flat != list(range(samples, size)):
            yield f"not exactly once: {flat}"
        most = max((max(step) for step in counts), default=0)
        joined = batch_size == 1 and most == 2 and all(max(step) == 1 for step in counts[:-1])
        if most > batch_size and not joined:
            yield f"a batch is larger than {batch_size}: {counts}"
    else:
        if any(count != batch_size for step in counts for count in step):
            yield f"a batch is not full: {counts}"
        dropped = left % full if tail == "drop" else 0
        repeated = -left % full if tail == "pad" else 0
        wanted = [position % size for position in range(samples, size - dropped + repeated)]
        if flat != sorted(wanted):
            yield f"wanted {wanted}, found {flat}"
        if dropped >= full:
            yield f"{dropped} dropped"
    if rest:
        after = plan.advance(cursor)
        taken = sum(counts[0])
        wanted_cursor = Cursor(samples=samples + taken, batches=1) if len(rest) > 1 else Cursor(epoch=1)
        if after != wanted_cursor:
            yield f"advance() goes to {after}, wanted {wanted_cursor}"


@pytest.mark.each_value
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("tail", TAILS)
def test_the_rest_of_an_epoch_comes_exactly_once_from_any_position(tail: Tail, world: int) -> None:
    """Every size, position and batch size: this covers every stop and every resume with other ranks or batch sizes."""
    cells = raised = 0
    for size in SIZES:
        for samples in range(size + 1):
            cells += 1
            for batch_size in BATCH_SIZES:
                if tail == "keep" and 0 < size - samples < world:
                    with pytest.raises(ValueError, match=f"{size - samples} samples .* for {world} ranks"):
                        make_plan(size, batch_size, world, tail).remaining(Cursor(samples=samples))
                    raised += 1
                    continue
                wrong = list(violations(size, samples, batch_size, world, tail))
                assert not wrong, (size, samples, batch_size, world, tail, wrong)
    assert cells == CELLS
    short = sum(1 for size in SIZES for samples in range(size) if size - samples < world)
    assert raised == (short * len(BATCH_SIZES) if tail == "keep" else 0)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("tail", TAILS)
def test_length_advance_batch_and_keys_agree(tail: Tail, world: int) -> None:
    walked = 0
    for size in SIZES:
        for batch_size in BATCH_SIZES:
            plan = make_plan(size, batch_size, world, tail, rank=world - 1)
            if tail == "keep" and size < world:
                continue
            keys = list(plan.keys(Cursor()))
            assert plan.batches(0) == plan.remaining(Cursor()) == len(keys)
            cursor = Cursor()
            for ahead, key in enumerate(keys):
                assert cursor == plan.advance(Cursor(), ahead)
                assert plan.remaining(cursor) == len(keys) - ahead
                assert cursor.batches == ahead == plan.placed(cursor).batches
                for found in (plan.batch(Cursor(), ahead), plan.batch(cursor)):
                    assert found.positions.tolist() == key.positions.tolist()
                cursor = plan.advance(cursor)
                walked += 1
            assert cursor == (Cursor(epoch=1) if keys else Cursor())
            with pytest.raises(IndexError, match=f"batch {len(keys)} asked for"):
                plan.batch(Cursor(), len(keys))
    assert walked > 500


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_advancing_crosses_epochs_as_iterating_does(batch_size: int, tail: Tail) -> None:
    plan = BatchPlan(order=Shuffled(10, seed=3), batch_size=batch_size, tail=tail, world=World(0, 2))
    per_epoch = plan.batches(0)
    cursor = Cursor()
    for count in range(3 * per_epoch + 1):
        assert cursor == plan.advance(Cursor(), count)
        assert cursor.epoch == count // per_epoch
        cursor = plan.advance(cursor)
    epochs = [[key.indices.tolist() for key in plan.keys(Cursor(epoch=epoch))] for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@st.composite
def journeys(draw: st.DrawFn) -> tuple[int, Tail, int, list[tuple[int, int, int]]]:
    """A size, a tail, a seed, and legs (batch size, world, steps before the next interruption)."""
    legs = st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(0, 8))
    return (
        draw(st.integers(4, 120)),
        draw(st.sampled_from(TAILS)),
        draw(st.integers(0, 99)),
        draw(st.lists(legs, min_size=2, max_size=4)),
    )


@settings(max_examples=examples(400))
@given(journeys())
def test_resumes_in_a_row_deliver_the_epoch_exactly_once(journey: tuple[int, Tail, int, list]) -> None:
    """Up to three interruptions, each resumed with other ranks and another batch size."""
    size, tail, seed, legs = journey
    order = Shuffled(size, seed=seed)
    cursor, delivered = Cursor(epoch=2), []
    for leg, (batch_size, world, count) in enumerate(legs):
        plan = BatchPlan(order=order, batch_size=batch_size, tail=tail, world=World(0, world))
        if tail == "keep" and size - cursor.samples < world:
            plan = plan.with_world(World())
            world = 1
        rest = steps(plan, cursor)
        taken = rest if leg == len(legs) - 1 else rest[:count]
        delivered += [index for step in taken for key in step for index in key.indices.tolist()]
        cursor = plan.advance(cursor, len(taken))
        if cursor.epoch > 2:
            break
    wanted = order.at(2, np.arange(size)).tolist()
    assert sorted(wanted) == list(range(size))
    full = batch_size * world
    if tail == "keep":
        assert sorted(delivered) == list(range(size))
    elif tail == "drop":
        assert sorted(delivered) == sorted(wanted[: len(delivered)])
        assert size - len(delivered) < full
    else:
        repeats = len(delivered) - size
        assert sorted(delivered) == sorted(wanted + [wanted[i % size] for i in range(repeats)])
        assert 0 <= repeats < full


def test_placed_counts_finished_batches_by_the_batch_size_of_the_plan() -> None:
    cells = 0
    for size in SIZES:
        for samples in range(0, size, 3):
            for batch_size in BATCH_SIZES:
                plan = make_plan(size, batch_size)
                placed = plan.placed(Cursor(samples=samples, batches=77))
                assert placed.samples == samples
                assert placed.batches + plan.remaining(placed) == plan.batches(0)
                assert 0 <= placed.batches <= samples
                cells += 1
    assert cells > 3000


@pytest.mark.parametrize("world", WORLDS)
def test_without_batching_each_sample_comes_by_itself(world: int) -> None:
    for size in range(world, 40):
        if size % world:
            with pytest.raises(ValueError, match="come out uneven"):
                make_plan(size, None, world).remaining(Cursor())
        else:
            found = [key.positions.tolist() for step in steps(make_plan(size, None, world), Cursor()) for key in step]
            assert found == [[position] for position in range(size)]
        assert len(steps(make_plan(size, None, world, "drop"), Cursor())) == size // world
        assert len(steps(make_plan(size, None, world, "pad"), Cursor())) == -(-size // world)


def test_an_epoch_without_batches_stays_where_it_is() -> None:
    for plan in (make_plan(0, 4), make_plan(3, 4, tail="drop"), make_plan(0, 4, 2, "pad")):
        assert plan.batches(0) == 0
        assert list(plan.keys(Cursor())) == []
        assert plan.advance(Cursor(), 5) == Cursor()


def test_numpy_sizes_become_plain_integers_in_the_cursor() -> None:
    plan = BatchPlan(order=Shuffled(np.int64(10)), batch_size=3)
    assert type(plan.advance(Cursor(), 3).samples) is int


def test_an_order_larger_than_a_lookup_is_dealt_in_pieces() -> None:
    size, world = (1 << 15) * 3 + 17, 2
    plan = make_plan(size, 5, world, rank=1)
    keys = list(plan.keys(Cursor(samples=7)))
    assert len(keys) == plan.remaining(Cursor(samples=7)) > 6000
    other = list(plan.with_world(World(0, world)).keys(Cursor(samples=7)))
    found = np.concatenate([key.positions for key in keys + other])
    assert np.array_equal(np.sort(found), np.arange(7, size))


def test_golden_batches() -> None:
    """The geometry is a public contract: 11 samples, batches of 2, 2 ranks."""
    found = {
        tail: [[key.positions.tolist() for key in step] for step in steps(make_plan(11, 2, 2, tail), Cursor())]
        for tail in TAILS
    }
    start = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert found == {"keep": [*start, [[8, 9], [10]]], "drop": start, "pad": [*start, [[8, 9], [10, 0]]]}
    lone = [[key.positions.tolist() for key in step] for step in steps(make_plan(9, 2, 2), Cursor())]
    assert lone == [[[0, 1], [2, 3]], [[4, 5], [6]], [[7], [8]]]
