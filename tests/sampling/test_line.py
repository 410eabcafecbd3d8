"""However often ranks and batch sizes change in a window: each sample once, equal batches, and a state that does not grow."""

import contextlib
import functools
import itertools
import json
import math
import pickle
from typing import Any, Self
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_checks import KINDS, PLANS, check_batches, lengths_of, positions, steps, steps_if_shared

import loaderkit as lk
from loaderkit import Cursor, LengthBuckets, PackPlan, TokenBudget, World
from loaderkit.sampling.by_length import segments as cutting
from loaderkit.sampling.by_length.line import deal
from loaderkit.sampling.by_length.window_plan import WindowPlan
from loaderkit.sampling.cursor import Identity, pack_state
from loaderkit.sampling.plan import BatchKey

# What each plan's geometry has most of; the samples' lengths stay below.
MANY: dict[str, Any] = {
    **{name: PLANS[name] for name in PLANS if name not in ("buckets of one", "packed, a row a batch")},
    "buckets of one": lambda lengths, batch=1, **more: LengthBuckets(lengths, 1, **more),
    "budget that leaves out": lambda lengths, batch=3, **more: TokenBudget(lengths, 20, too_long="drop", **more),
    "budget with long ones alone": lambda lengths, batch=3, **more: TokenBudget(
        lengths, 8 + batch, too_long="alone", **more
    ),
    "packed that leaves out": lambda lengths, batch=3, **more: PackPlan(lengths, 20, batch, too_long="drop", **more),
}
LIMITED = [name for name in MANY if "alone" not in name]  # whose batches are never over a budget


def on(plan: WindowPlan, ranks: int) -> WindowPlan:
    """The plan in another process: nothing is cached."""
    return pickle.loads(pickle.dumps(plan)).with_world(World(0, ranks))


def contents(found: list[list[BatchKey]]) -> list[Any]:
    return [
        [
            (key.epoch, key.positions.tolist(), key.indices.tolist(), None if key.rows is None else key.rows.tolist())
            for key in step
        ]
        for step in found
    ]


def wanted_of(plan: WindowPlan) -> list[int]:
    """The positions that an epoch has to deliver."""
    if isinstance(plan, LengthBuckets) or plan.too_long != "drop":  # type: ignore[attr-defined]
        return list(range(len(plan.lengths)))
    limit = plan.row_length if isinstance(plan, PackPlan) else plan.max_tokens  # type: ignore[attr-defined]
    found: list[int] = np.flatnonzero(plan.lengths[plan.order.indices(2, 0, len(plan.lengths))] <= limit).tolist()
    return found


@st.composite
def journeys(draw: st.DrawFn) -> Any:
    legs = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 4))
    return (
        draw(st.sampled_from(list(MANY))),
        draw(st.sampled_from(KINDS)),
        draw(st.integers(5, 120)),
        draw(st.integers(4, 60)),
        draw(st.booleans()),
        draw(st.sampled_from([-1, 25])),
        draw(st.lists(legs, min_size=3, max_size=12)),
    )


@settings(max_examples=150, deadline=None)
@given(journeys())
def test_in_line_each_sample_comes_once_and_a_resume_goes_on_at_every_stop(journey: Any) -> None:
    name, kind, size, window, shuffle, full, legs = journey
    cursor, delivered = Cursor(epoch=2), []
    with mock.patch.object(cutting, "_FULL", full):
        for batch, ranks, count in [*legs, (3, 1, size)]:  # one rank can always end it
            plan = on(MANY[name](lengths_of(kind, size), batch, window=window, seed=5, shuffle=shuffle), ranks)
            rest = steps_if_shared(plan, cursor)
            if rest is None:
                continue
            assert plan.remaining(cursor) == len(rest)
            if name in LIMITED:
                check_batches(plan, rest)
            for done in range(min(count, len(rest) - 1) + 1):
                after = plan.advance(cursor, done)
                assert contents(steps(on(plan, ranks), after)) == contents(rest[done:])
                assert on(plan, ranks).remaining(after) == len(rest) - done
            taken = min(count, len(rest))
            delivered += positions(rest[:taken])
            if taken == len(rest):
                assert ranks > 1 or plan.advance(cursor, taken) == Cursor(epoch=3) or not wanted_of(plan)
                break
            after = plan.advance(cursor, taken)
            cursor = Cursor(epoch=after.epoch, samples=after.samples, plan=after.plan)
    assert sorted(delivered) == wanted_of(plan)


@settings(max_examples=100, deadline=None)
@given(journeys(), st.sampled_from(["drop", "pad"]))
def test_in_line_other_tails_leave_out_or_repeat_some_of_the_end_alone(journey: Any, tail: Any) -> None:
    name, kind, size, window, shuffle, full, legs = journey
    cursor, delivered = Cursor(epoch=2), []
    with mock.patch.object(cutting, "_FULL", full):
        for batch, ranks, count in [*legs, (3, 2, size)]:
            made = MANY[name](lengths_of(kind, size), batch, window=window, seed=5, shuffle=shuffle, tail=tail)
            plan = on(made, ranks)
            rest = steps(plan, cursor)
            if name in LIMITED:
                check_batches(plan, rest)
            for done in range(min(count, len(rest) - 1) + 1):
                assert contents(steps(on(plan, ranks), plan.advance(cursor, done))) == contents(rest[done:])
            taken = min(count, len(rest))
            delivered += positions(rest[:taken])
            if taken == len(rest):
                break
            after = plan.advance(cursor, taken)
            cursor = Cursor(epoch=after.epoch, samples=after.samples, plan=after.plan)
    wanted, found = set(wanted_of(plan)), set(delivered)
    if tail == "drop":
        assert len(found) == len(delivered)
        assert found <= wanted
        room = plan.room(
            plan.lengths[plan.order.at(2, np.array(sorted(wanted - found), dtype=np.int64))], plan.geometry
        )
        assert room.costs.sum() < room.most
    else:
        assert found == wanted


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from([1, 1, 2, 4, 6, 7, 10, 13]), min_size=1, max_size=12),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["error", "drop"]),
)
def test_the_ranks_share_the_last_three_samples_of_each_wherever_that_is_possible(
    lengths: list[int], ranks: int, padded: bool, too_long: Any
) -> None:
    """Against all ways to divide a line into steps."""
    plan = TokenBudget(lengths, 10 if too_long == "drop" else 13, padded=padded, too_long=too_long)
    plan = plan.with_world(World(0, ranks))
    room = plan.room(plan.lengths, plan.geometry)
    held = plan.lengths[room.costs > 0]

    @functools.cache
    def can_be_shared(at: int) -> bool:
        cuts = {end: plan.cut(held[at:end], plan.geometry, last=False) for end in range(at + ranks, len(held) + 1)}
        steps = [end for end, cut in cuts.items() if cut is not None and len(cut.bounds) == ranks + 1]
        return at == len(held) or any(can_be_shared(end) for end in steps)

    def dealt() -> list[Any]:
        size = len(lengths)
        return list(deal(plan.lengths, room, plan.cut, plan.geometry, stop=size, last=True, keep=True))

    if not can_be_shared(0):
        with pytest.raises(ValueError, match="can't be shared evenly"):
            dealt()
        return
    if len(held) > 3 * ranks:  # what comes earlier is not divided for the sake of the end
        with contextlib.suppress(ValueError):
            dealt()
        return
    found = dealt()
    assert sum(len(cut.places) for _, cut in found) == len(held)
    assert all(len(cut.bounds) in (1, ranks + 1) for _, cut in found)
    assert found[-1][0] == len(lengths)


WINDOWS = {"buckets": 600, "buckets of one": 330, "budget with long ones alone": 540, "budget that leaves out": 900}


@pytest.mark.parametrize("name", MANY)
def test_many_changes_in_one_window_leave_the_state_small(name: str) -> None:
    window, random = WINDOWS.get(name, 900 if "packed" in name else 1200), np.random.default_rng(7)
    size, lengths = 2 * window, lengths_of("lognormal", 2 * window)
    if name == "packed":  # otherwise a step takes dozens of them
        lengths = np.minimum(lengths * 2, 40)
    delivered: list[int] = []
    state: Any = None
    largest, changes, work = 0, 0, []
    while True:
        ranks, batch, count = (int(number) for number in random.integers(1, [4, 3, 3]))
        plan = MANY[name](lengths, batch, window=window, seed=5)
        loaders = [
            lk.Loader(range(size), plan=plan, collate_fn=list, world=World(rank, ranks)) for rank in range(ranks)
        ]
        for loader in loaders if state is not None else ():
            loader.load_state_dict(json.loads(json.dumps(state)))
        cursor = loaders[0].cursor
        with counting(type(plan)) as arranged:
            next(on(plan, ranks).keys(cursor))
        work.append(arranged.samples)
        within = cursor.samples < window
        going_on = steps(plan.with_world(World(0, ranks)), cursor) if changes % 10 == 0 or not within else None
        taken = [list(itertools.islice(loader, count if within else None)) for loader in loaders]
        found = [[flat(batch) for batch in step] for step in zip(*taken, strict=True)]
        delivered += itertools.chain(*itertools.chain(*found))
        states = [loader.state_dict() for loader in loaders]
        assert all(other == states[0] for other in states)
        state = states[0]
        largest = max(largest, len(json.dumps(state)))
        if going_on is not None:
            assert found == [[key.indices.tolist() for key in step] for step in going_on[: len(found)]]
            assert {len(loader) - loader.cursor.batches for loader in loaders} == {
                len(going_on) - len(found)
            } or not within
            if name in LIMITED:
                check_batches(plan, going_on)
        if not within:
            break
        if going_on is not None:
            assert contents(steps(on(plan, ranks), loaders[0].cursor)) == contents(going_on[count:])
        changes += 1
    assert changes > 55
    assert loaders[0].cursor == Cursor(epoch=1)
    wanted = plan.order.indices(0, 0, size)
    assert sorted(delivered) == sorted(wanted[plan.room(lengths[wanted], plan.geometry).costs > 0].tolist())
    assert 300 < largest < 700
    # A resume costs as much after ten changes as after sixty: the window's cuts, and the line's.
    assert max(work[len(work) // 2 :]) <= max(work[8:30]) < 40 * window


def flat(batch: list[Any]) -> list[int]:
    return list(itertools.chain(*batch)) if isinstance(batch[0], list) else batch


class counting:  # noqa: N801 - as a function
    """Counts the samples that a class of plans arranges."""

    def __init__(self, plan: type[WindowPlan]) -> None:
        self.plan, self.cut, self.samples = plan, plan.cut, 0

    def __enter__(self) -> Self:
        def counted(plan: Any, lengths: Any, geometry: Any, *, last: bool) -> Any:
            self.samples += len(lengths)
            return self.cut(plan, lengths, geometry, last=last)

        self.patch = mock.patch.object(self.plan, "cut", counted)
        self.patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.patch.stop()


@pytest.mark.parametrize("name", MANY)
def test_the_largest_numbers_and_longest_names_leave_the_state_under_a_kilobyte(name: str) -> None:
    """A plan of 10^12 samples can't be made here: what its state has is written in place of a small one's."""
    plan, cursor, longest = MANY[name]([1] * 3000, 2, window=3000), Cursor(epoch=0), 0
    orders = [lk.Shuffled(10, seed=2**63 - number) for number in range(3, 9)]
    mixture = lk.Mixture(orders[:4], [1 / 3, 1 / 7, 1 / 9, 0.41], seed=2**63 - 1)
    whole = type(plan)([1] * 50, 9, order=mixture, window=32) if not isinstance(plan, PackPlan) else plan
    identity = Identity(dataset=f"{10**12:,} samples ({'x' * 200})", order=whole.key(0), seed=2**63 - 1)
    large = 10**11
    for number in range(60):
        geometry = [large, large + 1, 12_345, *(123_456,) * len(plan.geometry)][: len(plan.geometry) + 2]
        changed = on(MANY[name]([1] * 3000, 1 + number % 3, window=3000), 1 + number % 2)
        after = changed.advance(cursor)
        width = 2 + len(plan.geometry)
        entries, over = divmod(len(after.plan), width)
        # As many as with numbers of this size are taken until it is full.
        room = 1 + math.floor(180 / sum(len(str(value)) + 2 for value in geometry))
        long = Cursor(
            epoch=10**6,
            samples=large,
            batches=10**9,
            plan=tuple(geometry * min(entries, room)) + (large,) * over,
        )
        longest = max(longest, len(json.dumps(pack_state(long, identity, 10**9))))
        cursor = Cursor(epoch=0, samples=after.samples, plan=after.plan)
    assert over == 1
    assert 600 < longest < 1000


@pytest.mark.parametrize("name", ["buckets", "budget", "packed"])
def test_long_chains_of_older_states_go_on_as_they_were(name: str) -> None:
    lengths, cursor, random = lengths_of("lognormal", 1500), Cursor(epoch=2), np.random.default_rng(3)
    delivered: list[int] = []
    with mock.patch.object(cutting, "_FULL", 10**9):  # as it was
        for _ in range(40):
            plan = on(PLANS[name](lengths, int(random.integers(1, 3)), window=1500), int(random.integers(1, 4)))
            delivered += positions(steps(plan, cursor)[:1])
            cursor = plan.advance(cursor)
            cursor = Cursor(epoch=2, samples=cursor.samples, plan=cursor.plan)
        before = steps(plan, cursor)
    assert len(cursor.plan) > 25 * len(plan.geometry)
    assert contents(steps(on(plan, plan.world.size), cursor)) == contents(before)
    other = on(PLANS[name](lengths, 4, window=1500), 5)
    after = other.advance(cursor, 3)
    assert len(after.plan) == len(cursor.plan) + 1
    assert sorted(delivered + positions(steps(other, cursor))) == list(range(1500))


def test_a_line_is_the_same_in_every_version() -> None:
    """A state that stands in one has to be understood."""
    lengths = np.random.default_rng(0).integers(1, 30, 40)
    golden = {
        "buckets": [[[39], [18], [26]], [[34], [23], [24]]],
        "budget": [[[26], [18], [39, 24]], [[9], [28], [23, 34]]],
        "packed": [[[35], [13], [32, 34, 16]], [[9], [30], [5, 19]]],
    }
    with mock.patch.object(cutting, "_FULL", -1):
        for name, make in (
            ("buckets", lambda b, **more: LengthBuckets(lengths, b, window=30, **more)),
            ("budget", lambda b, **more: TokenBudget(lengths, 30 * b, window=30, **more)),
            ("packed", lambda b, **more: PackPlan(lengths, 30, b, window=30, **more)),
        ):
            plan = make(2).with_world(World(0, 2))
            cursor = plan.advance(Cursor(epoch=1))
            other = make(1).with_world(World(0, 3))
            found = steps(other, Cursor(epoch=1, samples=cursor.samples, plan=cursor.plan))
            assert [[key.indices.tolist() for key in step] for step in found[:2]] == golden[name]


def test_a_line_that_does_not_fit_is_refused() -> None:
    plan = LengthBuckets([3] * 50, 4, window=20)
    with mock.patch.object(cutting, "_FULL", -1):
        other = on(LengthBuckets([3] * 50, 3, window=20), 1)
        cursor = other.advance(plan.advance(Cursor()))
    assert cursor == Cursor(samples=7, batches=2, plan=(0, 20, 1, 4, 0, 4))
    assert on(other, 1).remaining(cursor) > 0
    for samples, numbers in (
        (3, cursor.plan),
        (20, cursor.plan),
        (7, (*cursor.plan[:-1], 8)),
        (7, (*cursor.plan[:-1], 5)),
    ):
        with pytest.raises(ValueError, match=r"cannot resume|is in the middle of a step"):
            on(other, 1).remaining(Cursor(samples=samples, plan=numbers))
    with pytest.raises(ValueError, match="cursor's plan has 7 numbers, wanted a multiple of 5"):
        on(other, 1).remaining(Cursor(samples=7, plan=(*cursor.plan, 1)))
    with pytest.raises(ValueError, match="cursor's plan has 1 numbers"):
        on(other, 1).remaining(Cursor(samples=7, plan=(4,)))
