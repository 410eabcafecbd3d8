"""Stages: no sample of a source is lost or repeated by a change, shares are exact, and a run resumes anywhere on any ranks."""

import itertools
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tier
import torch

import loaderkit as lk
from loaderkit import Cursor, Loader, Stage, Stages, StateError, World

SCHEDULES = 1000 if tier.full else 400


class Schedule:
    """Random stages on paper, the sizes of their sources, and the shares that each window has to have."""

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng(number)
        names = [f"s{row}" for row in range(int(rng.integers(1, 5)))]
        self.sizes = {name: int(rng.integers(1, 60)) for name in names}
        self.window = int(rng.integers(len(names), 50))
        self.tail: Any = rng.choice(["keep", "drop"])
        self.stages = []
        for _ in range(int(rng.integers(1, 6))):
            read = rng.permutation(names)[: rng.integers(1, len(names) + 1)].tolist()
            weights = {name: float(rng.uniform(0.2, 3)) for name in read}
            if rng.random() < 0.5:
                weights |= {name: (weight, float(rng.uniform(0, 3))) for name, weight in weights.items()}
            self.stages.append(Stage(weights, int(rng.integers(1, 9)), samples=int(rng.integers(4, 400))))
        self.rng = rng

    def plan(self) -> Stages:
        return Stages(self.stages, self.sizes, window=self.window, seed=3, tail=self.tail)

    def shares(self, stage: Stage, middle: float) -> dict[str, float]:
        """Shares move linearly between those of the stage's start and end."""
        ends = stage.weights_by_name
        first, last = (sum(weight[end] for weight in ends.values()) for end in (0, 1))
        return {name: (1 - middle) * a / first + middle * b / last for name, (a, b) in ends.items()}


def schedules(count: int) -> Iterator[tuple[Schedule, Stages]]:
    found = 0
    for number in itertools.count():
        schedule = Schedule(number)
        try:
            plan = schedule.plan()
        except ValueError as error:  # too short for one of its sources
            if "reads no sample" not in str(error):
                raise
            continue
        yield schedule, plan
        found += 1
        if found == count:
            assert number < 1.3 * count
            return


def sources_of(plan: Stages, schedule: Schedule) -> tuple[Any, Any]:
    """Return for each position of the schedule the number of its source, and its index there."""
    indices = plan.order.indices(0, 0, plan.ends[-1])
    starts = np.cumsum([0, *schedule.sizes.values()])
    source = np.searchsorted(starts, indices, side="right") - 1
    return source, indices - starts[source]


def test_on_paper_each_source_comes_once_a_pass_and_each_window_has_its_shares() -> None:
    windows = changes = passes = 0
    for schedule, plan in schedules(SCHEDULES):
        source, index = sources_of(plan, schedule)
        for row, size in enumerate(schedule.sizes.values()):
            mine = index[source == row]
            for start in range(0, len(mine), size):  # every pass, also those that a change of stages cuts
                assert len(set(mine[start : start + size].tolist())) == len(mine[start : start + size])
                passes += len(mine) - start >= size
        start = 0
        for stage, end in zip(schedule.stages, plan.ends, strict=True):
            changes += start > 0
            names = list(schedule.sizes)
            for begin in range(start, end, schedule.window):
                last = min(begin + schedule.window, end)
                shares = schedule.shares(stage, ((begin + last) / 2 - start) / stage.size)
                found = np.bincount(source[begin:last], minlength=len(names))
                wanted = np.array([shares.get(name, 0) for name in names]) * (last - begin)
                assert not found[wanted == 0].any()
                # In a stage's last, shorter window it is its part of a whole window, which is itself exact to one.
                assert abs(found - wanted).max() < (1 if last - begin == schedule.window else 2)
                windows += last - begin == schedule.window
            start = end
    assert (windows > 10 * SCHEDULES, changes > SCHEDULES, passes > 5 * SCHEDULES) == (True, True, True)


def test_on_paper_every_rank_gets_its_part_and_a_run_may_go_on_with_other_ranks() -> None:
    """A journey: some steps on some ranks, then on others, across the borders; with any tail."""
    legs = steps = 0
    for schedule, plan in schedules(150):
        cursor, seen = Cursor(), []
        while cursor.epoch == 0:
            ranks = int(schedule.rng.integers(1, 4))
            try:
                left = plan.with_world(World(0, ranks)).remaining(cursor)
            except ValueError as error:
                if "samples left in stage" not in str(error) or schedule.tail != "keep":
                    raise
                ranks, left = 1, plan.remaining(cursor)
            if not left:
                break  # the rest is dropped
            count = int(schedule.rng.integers(1, left + 1))
            worlds = [plan.with_world(World(rank, ranks)) for rank in range(ranks)]
            keys = [list(itertools.islice(world.keys(cursor), count)) for world in worlds]
            for step in zip(*keys, strict=True):
                sizes = [len(key.positions) for key in step]
                assert max(sizes) - min(sizes) <= 1 or schedule.stages[0].batch_size == 1
                positions = np.sort(np.concatenate([key.positions for key in step]))
                stage = np.searchsorted(plan.ends, positions, side="right")
                assert stage.min() == stage.max()  # no step has samples of two stages
                most = schedule.stages[stage[0]].batch_size
                assert max(sizes) <= (most if most > 1 else 2)
                seen += positions.tolist()
                steps += 1
            after = [world.advance(cursor, count) for world in worlds]
            assert len(set(after)) == 1
            cursor = after[0]
            legs += 1
        assert sorted(set(seen)) == sorted(seen)
        if schedule.tail == "keep":
            assert seen == list(range(plan.ends[-1]))
            assert cursor == Cursor(epoch=1, plan=(plan.ends[-1],))
    assert (legs > 300, steps > 3000) == (True, True)


class Drawing:
    """Samples that tell their number and draw one."""

    draws_only_sample_rng = True

    def __init__(self, start: int, size: int) -> None:
        self.start, self.size = start, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": self.start + index, "draw": lk.sample_rng().random()}

    def fingerprint(self) -> str:
        return f"from {self.start}"


WEB, BOOKS, CODE = Drawing(0, 30), Drawing(1000, 11), Drawing(2000, 8)
SOURCES = {"web": WEB, "books": BOOKS}
FIRST = Stage({"web": (3, 1), "books": (1, 3)}, 2, samples=21)
SECOND = Stage({"web": 1, "books": 1}, 3, samples=19)
THIRD = Stage("books", steps=4, global_batch_size=6)


def whole_ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def make(
    stages: list[Stage] | None = None, sources: dict[str, Any] | None = None, window: int = 8, **settings: Any
) -> Loader:
    plan = Stages(stages or [FIRST, SECOND, THIRD], sources or SOURCES, window=window)
    return Loader(plan.dataset, plan=plan, **settings)


def stopped(stop: int, **settings: Any) -> tuple[list[Any], Any]:
    """Return the first batches of a run, and its state through JSON."""
    loader = make(**settings)
    batches = list(itertools.islice(loader, stop))
    return batches, json.loads(json.dumps(loader.state_dict()))


def same(found: list[Any], wanted: list[Any]) -> bool:
    return len(found) == len(wanted) and all(
        torch.equal(one[name], other[name]) for one, other in zip(found, wanted, strict=True) for name in other
    )


BATCHES = 11 + 7 + 4


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 1, "engine": "torch"}])
def test_a_run_resumes_after_any_batch_bit_for_bit(workers: dict[str, Any]) -> None:
    whole = list(make())
    assert len(whole) == BATCHES == len(make())
    for stop in range(BATCHES + 1) if not workers else (0, 11, 15):
        first, state = stopped(stop)
        assert len(json.dumps(state)) < 1000
        resumed = make(**workers)
        resumed.load_state_dict(state)
        assert resumed.cursor.batches == (stop if stop < BATCHES else 0)
        assert len(resumed) == (BATCHES if stop < BATCHES else 0)
        if stop < BATCHES:
            assert same(first + list(resumed), whole)
        resumed.close()


@pytest.mark.parametrize("workers", [{"num_workers": 2}, {"num_workers": 2, "engine": "threads"}])
def test_workers_do_not_change_a_batch(workers: dict[str, Any]) -> None:
    whole = list(make())
    assert len(whole) == BATCHES
    assert same(list(make(**workers)), whole)


def test_the_order_of_version_1() -> None:
    """A changed order needs another version in its key."""
    assert whole_ids(make())[8:13] == GOLDEN
    assert make().state_dict()["identity"]["order"] == "stages-1(window 8: nothing yet)"


GOLDEN = [[1003, 1005], [25, 1008], [1010], [1001, 12, 1002], [27, 1004, 5]]


@pytest.mark.each_value
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_on_other_ranks_each_sample_still_comes_once(before: int, ranks: int) -> None:
    whole = [index for batch in whole_ids(make()) for index in batch]
    assert len(whole) == 21 + 19 + 24
    for stop in range(len(make(world=World(0, before)))):
        first = [whole_ids(stopped(stop, world=World(rank, before))[0]) for rank in range(before)]
        states = [stopped(stop, world=World(rank, before))[1] for rank in range(before)]
        assert all(state == states[0] for state in states)
        loaders = [make(world=World(rank, ranks)) for rank in range(ranks)]
        try:
            for loader in loaders:
                loader.load_state_dict(states[0])
            rest = [whole_ids(loader) for loader in loaders]
        except ValueError as error:
            if "wanted at least one for each" not in str(error) or before == ranks:
                raise
            continue
        assert len({len(batches) for batches in rest}) == 1
        steps = list(zip(*first, strict=True)) + list(zip(*rest, strict=True))
        assert [index for step in steps for batch in step for index in batch] == whole


def test_each_epoch_of_a_trainer_continues_the_schedule() -> None:
    """An epoch that is ended early does not end the schedule; a state in a later epoch resumes on other ranks too."""
    whole = [index for batch in whole_ids(make()) for index in batch]
    loader, found, lengths = make(), [], []
    while loader.cursor.epoch < 4:
        batches = list(itertools.islice(loader, 5))
        found += [index for batch in whole_ids(batches) for index in batch]
        lengths.append(len(loader))
        if loader.cursor.epoch == 2:
            state = loader.state_dict()
            assert (state["cursor"]["epoch"], state["cursor"]["plan"]) == (2, [20])
            ranks = [make(world=World(rank, 2)) for rank in range(2)]
            for one in ranks:
                one.load_state_dict(state)
            assert ranks[0].cursor.batches == 3  # steps of this epoch: one of 1 sample, two of 6
            rest = [index for step in zip(*map(whole_ids, ranks), strict=True) for batch in step for index in batch]
            assert found + rest == whole
        if len(batches) < 5:
            break
    assert found == whole
    assert lengths == [22, 17, 12, 7, 0]
    with pytest.warns(UserWarning, match="no batches in epoch 5: the 3 stages, 64 samples, are over.* add a Stage"):
        assert list(loader) == []


def test_a_log_of_steps_finds_the_batches_of_every_epoch(tmp_path: Path) -> None:
    log, loader, steps = lk.StepLog(tmp_path / "steps.log"), make(), []
    while loader.cursor.epoch < 5 and len(steps) < BATCHES:
        for batch in itertools.islice(loader, 5):
            log.record(loader, len(steps))
            steps.append(batch)
    assert len(steps) == BATCHES
    assert same([log.replay(make(), step)[0] for step in range(BATCHES)], steps)


def test_a_stretch_of_the_schedule_is_jumped_over_and_not_skipped() -> None:
    whole = [index for batch in whole_ids(make()) for index in batch]
    loader, other = make(), make()
    first = list(itertools.islice(loader, 3))
    with pytest.raises(ValueError, match="Stages cannot leave out a stretch of the order, wanted batches of one size"):
        loader.skip(epoch=0, steps=[range(3, 8)])
    loader.seek(epoch=0, samples=16)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    rest = [index for batch in whole_ids(other) for index in batch]
    assert [index for batch in whole_ids(first) for index in batch] + rest == whole[:6] + whole[16:]


def test_a_plan_by_length_takes_the_order_of_the_stages() -> None:
    """Each position of the schedule comes once, also after a stop anywhere, on other ranks."""
    stages = Stages([FIRST, SECOND, THIRD], SOURCES, window=8)
    lengths = [1 + index * 7 % 5 for index in range(len(stages.dataset))]
    whole = np.sort(stages.order.indices(0, 0, stages.ends[-1])).tolist()

    def on(ranks: int) -> list[Loader]:
        plan = lk.LengthBuckets(lengths, 3, order=stages.order, window=16)
        return [Loader(stages.dataset, plan=plan, world=World(rank, ranks), collate_fn=list) for rank in range(ranks)]

    def read(batches: Any) -> list[int]:
        """Indices in the dataset, which has the books first."""
        numbers = [row["id"] for batch in batches for row in batch]
        return [one - BOOKS.start if one >= BOOKS.start else len(BOOKS) + one for one in numbers]

    steps = len(on(2)[0])
    assert steps > 8
    for stop, ranks in itertools.product(range(steps), (1, 2, 3)):
        before = on(2)
        heads = [read(itertools.islice(loader, stop)) for loader in before]
        after = on(ranks)
        for loader in after:
            loader.load_state_dict(before[0].state_dict())
        assert sorted(itertools.chain(*heads, *map(read, after))) == whole


def test_later_stages_may_change_and_sources_may_be_added_at_a_resume() -> None:
    first, state = stopped(15)  # in the second stage
    more = {"code": CODE, **SOURCES}
    longer = Stage(SECOND.weights, 5, samples=40)  # also another batch size
    added = [FIRST, longer, Stage({"code": 1, "web": 1}, 4, samples=12)]
    resumed = make(added, more)
    resumed.load_state_dict(state)
    rest = [index for batch in whole_ids(resumed) for index in batch]
    assert [index for batch in whole_ids(first) for index in batch] + rest == [
        index for batch in whole_ids(make(added, more)) for index in batch
    ]
    assert sum(index >= 2000 for index in rest) == 6
    cut = make([FIRST, Stage(SECOND.weights, 3, samples=12), THIRD])  # ended where it stands
    cut.load_state_dict(state)
    assert all(1000 <= index < 2000 for index in next(iter(cut))["id"].tolist())


def test_a_finished_schedule_goes_on_when_a_stage_is_added() -> None:
    first, state = stopped(BATCHES)
    assert (state["cursor"]["epoch"], state["cursor"]["plan"]) == (1, [64])
    stages = [FIRST, SECOND, THIRD, Stage({"web": 1, "books": 1}, 2, samples=10)]
    resumed = make(stages)
    resumed.load_state_dict(state)
    assert len(resumed) == 5
    assert whole_ids(first) + whole_ids(resumed) == whole_ids(make(stages))


@pytest.mark.parametrize(
    ("stages", "sources", "settings", "message"),
    [
        (
            [FIRST, Stage({"web": 2, "books": 1}, 3, samples=19)],
            None,
            {},
            r"0\.5 books \+ 0\.5 web.*, this loader has .*0\.33",
        ),
        (
            [Stage(FIRST.weights, 2, samples=22), SECOND],
            None,
            {},
            "over 21, then 9 of .*, this loader has .* over 22, then 8 of",
        ),
        ([FIRST], None, {}, r"over 21, then 9 of .*, this loader has .* over 21\)'"),
        (None, {"web": WEB, "books": CODE}, {}, "for dataset 'sources.*, this loader has 'sources"),
        (None, None, {"window": 9}, "window 8: .* this loader has .*window 9: "),
        (None, None, {"seed": 4}, "for seed 0, this loader has 4"),
    ],
)
def test_stages_that_the_run_has_passed_must_be_the_same(
    stages: Any, sources: Any, settings: dict[str, Any], message: str
) -> None:
    _, state = stopped(14)
    assert state["cursor"]["samples"] == 30
    with pytest.raises(StateError, match=message):
        make(stages, sources, **settings).load_state_dict(state)


@pytest.mark.parametrize(
    ("plan", "samples", "message"),
    [
        ([1, 2], 0, r"cursor.plan is \[1, 2\], wanted at most one number, from 0 to 64"),
        ([-1], 3, "cursor.plan is .*, wanted at most one"),
        ([65], 0, "cursor.plan is"),
        ([60], 7, "cursor.samples is 7, wanted at most 4"),
    ],
)
def test_a_cursor_that_the_stages_cannot_have_given_is_refused(plan: list[int], samples: int, message: str) -> None:
    stages = Stages([FIRST, SECOND, THIRD], SOURCES, window=8)
    with pytest.raises(StateError, match=message):
        stages.check_cursor(Cursor(epoch=1, samples=samples, plan=tuple(plan)))


def test_a_stage_has_its_own_collate_function_in_every_engine() -> None:
    """Long rows are cut in the first stage, so each token comes once although the length of rows changes."""
    rows = lk.ArrayDataset(torch.arange(20 * 8).reshape(20, 8))
    stages = [Stage("rows", 2, samples=12, collate_fn=halves), Stage("rows", 2, samples=8)]
    plan = Stages(stages, {"rows": rows})
    for settings in (
        {},
        {"num_workers": 2},
        {"num_workers": 1, "engine": "torch"},
        {"num_workers": 2, "engine": "threads"},
    ):
        batches = list(Loader(plan.dataset, plan=plan, **settings))
        assert [tuple(batch.shape) for batch in batches] == [(4, 4)] * 6 + [(2, 8)] * 4
        assert sorted(torch.cat([batch.flatten() for batch in batches]).tolist()) == list(range(160))


class Halves:
    draws_nothing = True

    def __call__(self, rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(rows).reshape(-1, 4)


halves = Halves()


def test_a_bad_sample_is_replaced_by_one_of_its_stage() -> None:
    plan = Stages([Stage("a", 3, samples=15), Stage("b", 3, samples=15)], {"a": Bad(0), "b": Bad(1000)})
    loader = Loader(plan.dataset, plan=plan, bad_samples=lk.BadSamples("replace", max_rate=1))
    batches = [batch.tolist() for batch in loader]
    assert [{sample // 1000 for sample in batch} for batch in batches] == [{0}] * 5 + [{1}] * 5
    assert sorted(bad.index for bad in loader.bad_samples) == [*range(6), *range(15, 21)]
    assert all(bad.replacement is not None for bad in loader.bad_samples)


class Bad:
    """15 samples, six of which cannot be read."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __len__(self) -> int:
        return 15

    def __getitem__(self, index: int) -> int:
        if index < 6:
            raise ValueError("damaged")
        return self.start + index


def test_a_trillion_samples_cost_no_more() -> None:
    sizes = {"a": 10**12, "b": 10**7, "c": 10**10}
    stages = [Stage({"a": (1, 3), "b": (3, 0)}, 8, samples=10**12), Stage({"a": 3, "c": 1}, 8, samples=10**12)]
    tracemalloc.start()
    plan = Stages(stages, sizes)
    cursor = Cursor(samples=5 * 10**11)
    assert plan.remaining(cursor) == 15 * 10**11 // 8
    assert len(plan.batch(cursor).indices) == 8
    assert plan.advance(cursor, 10**11).samples == 13 * 10**11
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()
    counts = plan.order.counts(2 * 10**12)
    assert counts.tolist() == [625 * 10**9 + 75 * 10**10, 375 * 10**9, 25 * 10**10]


def test_the_plan_tells_samples_tokens_and_passes(tmp_path: Path) -> None:
    np.save(tmp_path / "web.npy", np.arange(161, dtype=np.uint16))
    web = lk.TokenDataset(str(tmp_path / "web.npy"), length=9, stride=8)
    texts = Texts()
    stages = Stages(
        [Stage({"web": 3, "books": 1}, 4, samples=40), Stage("texts", steps=2, global_batch_size=6)],
        {"web": web, "books": BOOKS, "texts": texts},
    )
    rows = stages.plan().rows
    assert [row[:4] for row in rows] == [(0, "books", 10, None), (0, "web", 30, 240), (1, "texts", 12, 18)]
    assert [row[4:] for row in rows] == [(0, 10 / 11), (0, 1.5), (0, 3)]
    assert str(stages.plan()) == (
        "stage 0: 40 samples in batches of 4\n"
        "  books: 10 samples, passes 0.00 to 0.91\n"
        "  web: 30 samples, 240 tokens, passes 0.00 to 1.50\n"
        "stage 1: 12 samples in steps of 6\n"
        "  texts: 12 samples, 18 tokens, passes 0.00 to 3.00"
    )
    assert "240 tokens" in stages.plan()._repr_html_()


class Texts(list[list[int]]):
    def __init__(self) -> None:
        super().__init__([[1], [1, 2], [1], [2, 2]])

    def lengths(self) -> Any:
        return np.array([1, 2, 1, 2])


def test_the_stage_of_a_batch_is_told() -> None:
    plan = Stages([FIRST, SECOND, THIRD], SOURCES, window=8)
    loader = Loader(plan.dataset, plan=plan)
    assert plan.stage_of(loader.cursor) == 0
    found = [plan.stage_of(loader.cursor) for _ in loader]
    assert found == [0] * 11 + [1] * 7 + [2] * 4
    assert plan.samples_at(loader.cursor) == 64


def test_a_source_in_shards_is_read_by_its_shards_or_by_an_order_of_its_own() -> None:
    plan = Stages(
        [Stage({"a": 1, "b": 1}, 4, samples=40)], {"a": InShards(range(40)), "b": 20}, orders={"b": lk.Sequential(20)}
    )
    indices = plan.order.indices(0, 0, 40)
    order = lk.ShardOrder(InShards.shard_sizes, seed=lk.derive_seed("stages", 0, "a"))
    assert np.array_equal(indices[indices < 40], order.indices(0, 0, 20))
    assert (indices[indices >= 40] - 40).tolist() == list(range(20))


class InShards(list[int]):
    shard_sizes = (10,) * 4


@pytest.mark.parametrize(
    ("make_it", "error", "message"),
    [
        (lambda: Stage("a", 4), ValueError, "samples=None and steps=None, wanted one of them"),
        (lambda: Stage("a", 4, samples=0), ValueError, "samples is 0, wanted an integer of at least 1"),
        (lambda: Stage("a", samples=4), ValueError, "batch_size=None and global_batch_size=None, wanted one"),
        (lambda: Stage("a", 4, steps=4), ValueError, "steps=4 with batch_size=4 of each rank.* Give samples="),
        (lambda: Stage("a", 4, samples=4, collate_fn=3), ValueError, "collate_fn is 3"),  # type: ignore[arg-type]
        (lambda: Stage({}, 4, samples=4), ValueError, "weights is {}, wanted a dict"),
        (lambda: Stage({"a": 0}, 4, samples=4), ValueError, "the weight of 'a' is 0, wanted a number above 0"),
        (lambda: Stage({"a": (1, -1)}, 4, samples=4), ValueError, r"the weight of 'a' is \(1, -1\), wanted"),
        (lambda: Stage({"a": (0, 1)}, 4, samples=4), ValueError, "all weights are 0 at the stage's start"),
        (lambda: Stages([], {"a": 4}), ValueError, r"stages is \[\], wanted a list of at least one"),
        (lambda: Stages([Stage("a", 2, samples=4)], [range(4)]), TypeError, r"sources is a list, wanted a dict .* such as \{'web'"),  # type: ignore[arg-type]
        (lambda: one({"a": 4}, window=0), ValueError, "window is 0"),
        (lambda: one({"a": 4}, tail="pad"), ValueError, "tail is 'pad', wanted 'keep' or 'drop'"),
        (lambda: one({"books": 4}, weights="boks"), ValueError, "stage 0 names the source 'boks'.* Did you mean 'books'"),
        (lambda: one({"a": 4}, orders={"b": lk.Sequential(4)}), ValueError, "orders names the source 'b'"),
        (lambda: one({"a": 0}), ValueError, "source 'a' has 0 samples"),
        (lambda: one({"a": 4}, orders={"a": lk.Sequential(5)}), ValueError, "source 'a' has 4 samples.* indices below 5"),
        (lambda: one({"a": lk.StreamDataset(["x"], read=print)}), TypeError, "source 'a' is of type StreamDataset"),
        (lambda: one({"a": 4, "b": 4}, weights={"a": 9, "b": 1}, window=4), ValueError, "reads no sample of 'b', wanted"),
        (lambda: one({"a": 4}).dataset, TypeError, r"sources \['a'\] are numbers of samples"),
        (lambda: one({"a": 4}).with_world(World(0, 9)).remaining(Cursor()), ValueError, "8 samples left in stage 0 for 9 ranks"),
        (lambda: one({"a": 4}).batch(Cursor(epoch=1)), IndexError, "batch 0 of epoch 1 asked for.* Ask for epoch 0"),
        (lambda: Loader(one({"a": 4})), TypeError, r"Loader\(stages.dataset, plan=stages\)"),
        (lambda: Loader(range(5), plan=one({"a": 4})), ValueError, "have 4 samples, the dataset has 5. Give .*stages.dataset"),
        (lambda: Stage("a", steps=2, global_batch_size=4).batch_size_of(World(0, 3)), ValueError, "wanted a multiple of the 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make_it: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_it()


def one(sources: dict[str, Any], weights: Any = "a", **settings: Any) -> Stages:
    return Stages([Stage(weights, 2, samples=8)], sources, **settings)


@pytest.mark.parametrize("sources", [2, 3, 9])
def test_another_source_is_named(sources: int) -> None:
    """By its name and its sizes; with many sources a state has only a hash, and the error lists what there is."""
    names = [f"source-{number}" for number in range(sources)]
    stages = [Stage(dict.fromkeys(names, 1), 2, samples=40)]

    def make_with(changed: str | None) -> Loader:
        data = {name: list(range(60 if name == changed else 50)) for name in names}
        plan = Stages(stages, data, window=20)
        return Loader(plan.dataset, plan=plan)

    first = make_with(None)
    next(iter(first))
    state = first.state_dict()
    with pytest.raises(StateError, match="cannot resume") as caught:
        make_with("source-1").load_state_dict(state)
    said = str(caught.value)
    if "; source-1" in state["identity"]["dataset"]:
        assert "What differs is source 'source-1': 50 samples " in said
        assert "source-0':" not in said
    else:
        assert "'source-0': 50 samples, 'source-1': 60 samples" in said
