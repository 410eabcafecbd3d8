"""Bad samples are skipped or replaced as a function of the samples, so the laws still hold."""

import gc
import itertools
import json
import logging
import os
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from drawing import BreakAt, draws, equal, generator_states, rows, take

import loaderkit as lk
from loaderkit.datasets.bad_samples import BadSampleCount, Reported, portable
from loaderkit.datasets.combine import ConcatDataset, MapDataset
from loaderkit.system.retry import Retry

SIZE = 23
FAST = Retry(attempts=3, wait_s=0)
SKIP, REPLACE = lk.BadSamples("skip", max_rate=1), lk.BadSamples("replace", max_rate=1)
BAD = {
    "one": {7},
    "first and last": {0, 22},
    "a run": set(range(5, 13)),
    "every second": set(range(0, 23, 2)),
    "most": set(range(23)) - {2, 11, 12, 19},
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:Loader. . workers for"),  # small data leaves some idle
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
]


class Damaged:
    """Samples (index, draws), of which some fail after they drew."""

    def __init__(self, bad: set[int], size: int = SIZE) -> None:
        self.bad, self.size = bad, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        sample = index, draws()
        if index in self.bad:
            raise OSError(f"cannot decode {index}")
        return sample


class DamagedBatches:
    """Reads collated batches; a bad one fails as a whole."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return index, torch.zeros(7)

    def read_batch(self, indices: np.ndarray) -> Any:
        if self.bad & set(indices.tolist()):
            raise ValueError("bad block")
        return [torch.from_numpy(indices), torch.zeros(len(indices), 7)]


NUMBERS = lk.ArrayDataset(torch.arange(SIZE))
DATASETS: dict[str, Callable[[set[int]], Any]] = {
    "one by one": Damaged,
    "transform of many": lambda bad: MapDataset(NUMBERS, BreakAt(bad)),
    "concat of many": lambda bad: ConcatDataset([MapDataset(NUMBERS, BreakAt(bad))]),
    "batches": DamagedBatches,
}


def make(dataset: Any, batch_size: int | None = 4, policy: lk.BadSamples = SKIP, **settings: Any) -> lk.Loader:
    return lk.Loader(dataset, batch_size, shuffle=True, seed=3, bad_samples=policy, **settings)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("bad", ["first and last", "a run", "every second", "most"])
@pytest.mark.parametrize("name", DATASETS)
def test_good_samples_come_once_with_their_own_draws(name: str, bad: str, batch_size: int, world: int) -> None:
    """A replacement comes in addition. All ranks have equally many batches, and none is empty."""
    clean = dict(rows(list(make(DATASETS[name](set()), batch_size))))
    assert len(clean) == SIZE
    dataset = DATASETS[name](BAD[bad])
    good = set(range(SIZE)) - BAD[bad]
    for policy in (SKIP, REPLACE):
        found: list[tuple[int, str]] = []
        counts, replaced = [], 0
        for rank in range(world):
            loader = make(dataset, batch_size, policy, world=lk.World(rank, world))
            batches = list(loader)
            counts.append(len(batches))
            assert all(len(batch[0]) for batch in batches)
            for number, batch in enumerate(batches):
                planned = loader.indices(0, number).tolist()
                wanted = len([index for index in planned if index in good]) if policy is SKIP else len(planned)
                assert len(batch[0]) == max(1, wanted)
            found += rows(batches)
            assert {sample.index for sample in loader.bad_samples} <= BAD[bad]
            stood_in = [sample.replacement for sample in loader.bad_samples if sample.replacement is not None]
            replaced += len(stood_in)
            assert len(stood_in) == len(loader.bad_samples) or policy is SKIP
            for index in stood_in:
                # In a sample's own place it has its own draws.
                found.remove(
                    next(row for row in found if row[0] == index and (name == "batches" or row[1] != clean[index]))
                )
        assert set(counts) == {len(lk.Loader(range(SIZE), batch_size, world=lk.World(0, world)))}
        assert dict(found) == {index: clean[index] for index in good}
        assert len(found) == len(good)
        assert replaced == len(BAD[bad]) or policy is SKIP


@pytest.mark.each_value
@pytest.mark.parametrize("policy", [SKIP, REPLACE], ids=["skip", "replace"])
@pytest.mark.parametrize("bad", ["one", "most"])
@pytest.mark.parametrize("name", DATASETS)
def test_a_resume_continues_the_uninterrupted_run(name: str, bad: str, policy: lk.BadSamples) -> None:
    """At every stop in two epochs, bit for bit; the count of bad samples, too."""
    dataset = DATASETS[name](BAD[bad])
    whole_loader = make(dataset, 4, policy)
    whole, state = take(whole_loader, 12)
    for stop in range(1, 12):
        first, middle = take(make(dataset, 4, policy), stop)
        resumed = make(dataset, 4, policy)
        resumed.load_state_dict(middle)
        rest, end = take(resumed, 12 - stop)
        assert equal(first + rest, whole)
        assert end == state
        assert len(json.dumps(middle)) < 1024
    assert len(whole_loader.bad_samples) == 2 * len(BAD[bad])


@pytest.mark.parametrize("policy", [SKIP, REPLACE], ids=["skip", "replace"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", ["one by one", "concat of many", "batches"])
def test_workers_do_not_change_a_batch(name: str, batch_size: int, policy: lk.BadSamples) -> None:
    bad = BAD["most"]
    settings: list[Any] = [{}, {"num_workers": 2, "persistent_workers": True}]
    loaders = [make(DATASETS[name](bad), batch_size, policy, **each) for each in settings]
    epochs = [[list(loader), list(loader)] for loader in loaders]
    assert equal(*epochs)
    assert len(epochs[0][1]) == -(-SIZE // batch_size)
    assert loaders[0].bad_samples == loaders[1].bad_samples
    assert len(loaders[0].bad_samples) == 2 * len(bad)
    assert loaders[0].state_dict() == loaders[1].state_dict()


def test_a_resume_from_workers_that_were_not_forked_is_the_same() -> None:
    dataset = Damaged(BAD["a run"])
    whole, _ = take(make(dataset, 4, REPLACE), 12)
    first, state = take(make(dataset, 4, REPLACE, num_workers=2, multiprocessing_context="forkserver"), 4)
    resumed = make(dataset, 4, REPLACE, num_workers=1)
    resumed.load_state_dict(state)
    assert equal(first + take(resumed, 8)[0], whole)


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize(("batch_size", "world"), [(2, 1), (5, 2), (3, 3)])
def test_after_a_resume_on_other_ranks_each_good_sample_comes_once(name: str, batch_size: int, world: int) -> None:
    bad = BAD["every second"]
    dataset = DATASETS[name](bad)
    replaced: list[list[Any]] = []
    for policy in (SKIP, REPLACE):
        loader = make(dataset, 3, policy)
        first, state = take(loader, 3)
        found, stood_in = rows(first), [(s.position, s.index, s.replacement) for s in loader.bad_samples]
        for rank in range(world):
            loader = make(dataset, batch_size, policy, world=lk.World(rank, world))
            loader.load_state_dict(state)
            found += rows(list(loader))
            stood_in += [(s.position, s.index, s.replacement) for s in loader.bad_samples]
        extra = [replacement for *_, replacement in stood_in if replacement is not None]
        assert sorted(i for i, _ in found) == sorted([*set(range(SIZE)) - bad, *extra])
        replaced.append(sorted(stood_in))
    whole = make(dataset, 4, REPLACE)
    list(whole)
    # The replacement does not depend on the batches.
    assert replaced[1] == sorted((s.position, s.index, s.replacement) for s in whole.bad_samples)
    assert {index for _, index, _ in replaced[0]} == bad


def test_replacements_come_from_the_order() -> None:
    """Samples outside the order are not used."""
    chosen = lk.Subset(range(0, SIZE, 3), shuffle=True, seed=1)
    loader = lk.Loader(Damaged({0, 3, 6, 9}), 2, order=chosen, bad_samples=REPLACE)
    found = [int(i) for _ in range(6) for batch in loader for i in batch[0]]
    assert len(found) == 6 * 8
    assert set(found) == {12, 15, 18, 21}
    assert len({sample.replacement for sample in loader.bad_samples}) > 1


def test_a_resume_with_another_block_of_a_shard_order_replaces_by_the_same() -> None:
    class Sharded(Damaged):
        shard_sizes = (10, 13)

    def by_position(loader: lk.Loader) -> dict[int, int | None]:
        return {s.position: s.replacement for s in loader.bad_samples if s.epoch == 0}

    dataset = Sharded(BAD["every second"])
    whole = make(dataset, 2, REPLACE)
    list(whole)
    first = make(dataset, 2, REPLACE)
    _, state = take(first, 4)
    second = make(dataset, 5, REPLACE)
    list(second)  # its engine has another order
    second.load_state_dict(state)
    before = len(second.bad_samples)
    list(second)
    late = {s.position: s.replacement for s in second.bad_samples[before:]}
    assert late == {place: index for place, index in by_position(whole).items() if place >= 8}
    assert len(late) > 3


@pytest.mark.parametrize("policy", [SKIP, REPLACE], ids=["skip", "replace"])
def test_single_samples_are_replaced(policy: lk.BadSamples) -> None:
    """A single sample cannot be left out."""
    found = [sample[0] for sample in make(Damaged({1, 2}), None, policy)]
    assert len(found) == SIZE
    assert not {1, 2} & set(found)


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("bad", ["a run", "most"])
@pytest.mark.parametrize("policy", [SKIP, REPLACE], ids=["skip", "replace"])
def test_rows_hold_what_is_left_and_no_more_than_they_may(policy: lk.BadSamples, bad: str, name: str) -> None:
    """Empty rows are dropped; all ranks have equally many batches, none empty; replacements fit."""
    lengths = np.arange(SIZE) % 9 + 1
    made: list[list[list[int]]] = []

    def collate(rows: list[list[Any]]) -> int:
        made.append([[int(sample[0]) for sample in row] for row in rows])
        return len(made)

    counts, planned_rows, left_rows, found = [], 0, 0, []
    dataset = (Damaged if name == "batches" else DATASETS[name])(BAD[bad])
    for rank in range(2):
        plan = lk.PackPlan(lengths, 10, 2, seed=3)
        loader = lk.Loader(dataset, plan=plan, collate_fn=collate, bad_samples=policy, world=lk.World(rank, 2))
        made.clear()
        counts.append(len(list(loader)))
        assert len(made) == counts[-1] > 1
        for number, rows_made in enumerate(made):
            planned_rows += len(plan.with_world(lk.World(rank, 2)).batch(lk.Cursor(), number).rows) - 1
            left_rows += len(rows_made)
            assert rows_made
            assert all(rows_made)
            assert all(sum(lengths[each] for each in row) <= 10 for row in rows_made)
            found += [each for row in rows_made for each in row]
        for each in loader.bad_samples:
            assert each.replacement is None or lengths[each.replacement] <= lengths[each.index] or policy is SKIP
    assert counts[0] == counts[1]
    assert not set(found) & BAD[bad]
    assert set(found) == set(range(SIZE)) - BAD[bad]
    assert left_rows <= planned_rows


@pytest.mark.parametrize("policy", [SKIP, REPLACE], ids=["skip", "replace"])
def test_replacements_stay_within_a_budget_of_tokens(policy: lk.BadSamples) -> None:
    """Also if the data has samples that are too long for any batch."""
    lengths = np.arange(60) % 20 + 1
    bad = {9, 29, 49, 3, 0}
    plan = lk.TokenBudget(lengths, 30, too_long="drop", padded=True, seed=3)
    plan_15 = lk.TokenBudget(lengths, 15, too_long="drop", seed=3)
    for each, most in ((plan, 30), (plan_15, 15)):
        loader = lk.Loader(Damaged(bad, 60), plan=each, bad_samples=policy)
        batches = [batch[0].tolist() for batch in loader]
        assert len(batches) == len(loader)
        assert all(0 < max(lengths[batch]) * len(batch) <= most for batch in batches)
        stood_in = [sample for sample in loader.bad_samples if sample.replacement is not None]
        assert stood_in or policy is SKIP
        assert {sample.index for sample in loader.bad_samples} == {i for i in bad if lengths[i] <= most}


class Flaky(Damaged):
    """Some samples fail a few times in each process before they can be read."""

    def __init__(self, bad: set[int], failures: int, error: Exception) -> None:
        super().__init__(bad)
        self.left = dict.fromkeys(bad, failures)
        self.error = error

    def __getitem__(self, index: int) -> Any:
        sample = index, draws()
        if self.left.get(index, 0):
            self.left[index] -= 1
            raise self.error
        return sample


class FlakyMany(Flaky):
    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        read = self[indices[0]] if len(indices) == 1 else None
        if self.left and any(self.left.get(index, 0) for index in indices) and read is None:
            for index in indices:
                self.left[index] = max(0, self.left.get(index, 0) - 1)
            raise self.error
        return [(index, torch.zeros(7)) for index in indices]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
@pytest.mark.parametrize("kind", [Flaky, FlakyMany])
def test_reads_that_succeed_when_tried_again_change_nothing(kind: Any, policy: Any, workers: int) -> None:
    how = lk.BadSamples(policy, retry=FAST)
    clean = list(make(kind(set(), 0, OSError()), 4, how))
    loader = make(kind({3, 4, 20}, 2, ConnectionResetError("by peer")), 4, how, num_workers=workers)
    assert equal(list(loader), clean)
    assert len(clean) == 6
    assert not loader.bad_samples


def test_reads_that_keep_failing_are_tried_as_often_as_asked() -> None:
    dataset = Flaky({3}, 100, TimeoutError())
    with pytest.raises(TimeoutError) as caught:
        list(lk.Loader(dataset, 4, bad_samples=lk.BadSamples(retry=FAST)))
    assert dataset.left[3] == 100 - 3
    assert "tried 3 times" in caught.value.__notes__[0]
    assert "while reading sample 3 (epoch 0, position 3)" in caught.value.__notes__[1]
    dataset = Flaky({3}, 100, ValueError())
    loader = make(dataset, 4, SKIP)
    assert sum(len(batch[0]) for batch in loader) == SIZE - 1
    assert dataset.left[3] == 99  # permanent errors are not retried


def limited(**limits: Any) -> lk.BadSamples:
    return lk.BadSamples("skip", **limits)


def until_too_many(loader: lk.Loader) -> tuple[str, int]:
    """The error's count and limit, and the batches before it."""
    batches: list[Any] = []
    with pytest.raises(lk.BadSamplesError) as caught:
        batches.extend(loader)
    return str(caught.value).split("The first")[0], len(batches)


@pytest.mark.parametrize(("stop", "workers"), [(0, 2), (5, 2), *((stop, 0) for stop in range(8))])
def test_too_many_bad_samples_are_an_error_at_the_same_batch(stop: int, workers: int) -> None:
    """With workers and after a resume, too; that batch is not counted."""
    bad = set(range(10, 60, 5))
    for policy in (limited(max_count=5, max_rate=1), limited(max_rate=0.05)):

        def loader(policy: lk.BadSamples = policy, **settings: Any) -> lk.Loader:
            return lk.Loader(Damaged(bad, 120), 4, bad_samples=policy, **settings)

        first = loader()
        whole, batches = until_too_many(first)
        assert batches == (8 if policy.max_count else 10)
        assert first.cursor.batches == batches
        begun = loader()
        state = take(begun, stop)[1] if stop else begun.state_dict()
        resumed = loader(num_workers=workers)
        resumed.load_state_dict(state)
        again, rest = until_too_many(resumed)
        assert stop + rest == batches
        assert again == whole


def test_the_error_names_counts_the_first_and_their_cause() -> None:
    loader = lk.Loader(Damaged({3, 5, 6}), 4, num_workers=1, bad_samples=limited(max_count=2, max_rate=1))
    with pytest.raises(lk.BadSamplesError, match=r"3 bad samples in epoch 0, wanted at most max_count=2\.") as caught:
        list(loader)
    assert "sample 3 at position 3: OSError: cannot decode 3; sample 5 at" in str(caught.value)
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert str(cause) == "cannot decode 3"
    assert "in __getitem__" in cause.__notes__[0]
    more = lk.Loader(Damaged({3, 5, 6}), 4, bad_samples=limited(max_count=3, max_rate=1))
    more.load_state_dict(loader.state_dict())
    assert [batch[0].tolist() for batch in itertools.islice(more, 1)] == [[4, 7]]


def test_each_epoch_starts_its_own_count() -> None:
    loader = lk.Loader(Damaged({3, 15}), 4, bad_samples=limited(max_count=2, max_rate=1))
    for epoch in range(3):
        states = [loader.state_dict().get("bad", 0) for _ in loader]
        assert states == [1, 1, 1, 2, 2, 0]  # after the last batch, the state is in the next epoch
        assert loader.cursor.epoch == epoch + 1
    assert len(loader.bad_samples) == 6
    it = iter(loader)
    next(it)
    assert loader.state_dict()["bad"] == 1
    loader.seek(epoch=3)
    assert loader.state_dict()["bad"] == 0


def test_a_state_of_one_rank_of_several_is_the_same_on_all() -> None:
    states = []
    for rank in range(2):
        loader = lk.Loader(Damaged({0, 1}), 2, bad_samples=SKIP, world=lk.World(rank, 2))
        next(iter(loader))
        states.append(loader.state_dict())
    assert states[0] == states[1]
    # All ranks know what a single rank counted before.
    loader = lk.Loader(Damaged({0, 1}), 4, bad_samples=SKIP)
    next(iter(loader))
    for rank in range(2):
        resumed = lk.Loader(Damaged({0, 1}), 2, bad_samples=SKIP, world=lk.World(rank, 2))
        resumed.load_state_dict(loader.state_dict())
        next(iter(resumed))
        assert resumed.state_dict()["bad"] == 2


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1), (2, 2), (2, 3)])
def test_each_rank_judges_what_it_has_read_and_what_all_know(
    old: int, new: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As counts by hand say: what each of several ranks found before the resume does not count."""
    caplog.set_level(logging.ERROR, "loaderkit")
    size, batch_size, rate = 3000, 20, 0.05
    bad = {index for index in range(size) if index % 30 <= (index >= 1000) + (index >= 2100)}

    def at_rank(rank: int, ranks: int, rate: float = rate) -> lk.Loader:
        policy = limited(max_rate=rate)
        return lk.Loader(Damaged(bad, size), batch_size, bad_samples=policy, world=lk.World(rank, ranks))

    def stops_at(loader: lk.Loader, known: int, judged: int) -> int | None:
        """The batch at which a count by hand is too high."""
        start = loader.cursor.batches
        for batch, _ in enumerate(loader, 1):
            if known + len(loader.bad_samples) > rate * max(judged + batch * batch_size, 1000):
                return start + batch - 1
        return None

    ends = set()
    for stop in (1, 20):
        begun = [at_rank(rank, old) for rank in range(old)]
        states = [take(loader, stop)[1] for loader in begun]
        assert all(state == states[0] for state in states)
        assert len(json.dumps(states[0])) < 1024
        samples = stop * batch_size * old
        known = sum(index in bad for index in range(samples)) if old == 1 else 0
        for rank in range(new):
            resumed = at_rank(rank, new)
            counting = at_rank(rank, new, 1.0)
            for loader in (resumed, counting):
                loader.load_state_dict(json.loads(json.dumps(states[0])))
                assert loader.cursor.samples == samples
            wanted = stops_at(counting, known, samples if old == 1 else 0)
            ends.add(wanted)
            if wanted is None:
                list(resumed)
                assert resumed.cursor.epoch == 1
            else:
                until_too_many(resumed)
                assert resumed.cursor.batches == wanted
    assert len(ends) > 1


@pytest.mark.each_value
@pytest.mark.parametrize("policy", [SKIP, REPLACE], ids=["skip", "replace"])
@pytest.mark.parametrize("size", [4, 5, 6, 8])
def test_a_rate_of_one_is_no_limit(size: int, policy: lk.BadSamples) -> None:
    """Not even on a rank that reads bad samples again, because padding repeats rows."""
    for rank in range(3):
        plan = lk.PackPlan(np.arange(size) + 1, 10, 4, tail="pad", seed=3)
        dataset = Damaged(set(range(1, size)), size)
        loader = lk.Loader(dataset, plan=plan, collate_fn=list, bad_samples=policy, world=lk.World(rank, 3))
        list(loader)
        assert loader.cursor == lk.Cursor(epoch=1)
        assert len(loader.bad_samples) > size or size > 4


def test_what_was_skipped_by_a_seek_is_not_judged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "loaderkit")
    policy = limited(max_rate=0.05)
    damaged = Damaged(set(range(2000, 4000, 10)), 4000)
    sought, resumed = (lk.Loader(damaged, 20, bad_samples=policy) for _ in range(2))
    sought.seek(epoch=0, samples=1000)
    it = iter(sought)
    assert len(list(itertools.islice(it, 60))) == 60
    resumed.load_state_dict(sought.state_dict())
    text, _ = until_too_many(resumed)
    with pytest.raises(lk.BadSamplesError) as caught:
        list(it)
    assert str(caught.value).startswith(text)
    assert "102 bad samples in epoch 0, wanted at most max_rate=0.05 of 2,020 samples" in text
    assert sought.cursor == resumed.cursor


def test_they_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "loaderkit"):
        loader = lk.Loader(Damaged({3, 5}), 4, num_workers=1, bad_samples=SKIP)
        list(loader)
        list(lk.Loader(Damaged({0}), 1, bad_samples=SKIP))
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0] == "sample 3 (epoch 0, position 3) skipped: OSError: cannot decode 3"
    assert messages[1] == "sample 5 (epoch 0, position 5) skipped: OSError: cannot decode 5"
    assert "sample 0 (epoch 0, position 0) replaced by " in messages[2]
    assert len(messages) == 3
    assert loader.bad_samples[1] == lk.BadSample(0, 5, 5, "OSError: cannot decode 5", None)


@pytest.mark.parametrize("policy", [SKIP, REPLACE], ids=["skip", "replace"])
@pytest.mark.parametrize("name", DATASETS)
def test_errors_that_are_not_raised_keep_no_object_of_the_caller_alive(name: str, policy: lk.BadSamples) -> None:
    """Otherwise the caller's workers would live until the garbage is collected."""

    class Workers:
        pass

    def run() -> weakref.ref[Workers]:
        workers = Workers()
        assert len(list(make(DATASETS[name](BAD["most"]), 4, policy))) == 6
        list(make(Flaky({3}, 1, TimeoutError()), 4, lk.BadSamples(retry=FAST)))
        return weakref.ref(workers)

    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError, torch.OutOfMemoryError, ImportError])
@pytest.mark.parametrize("policy", [SKIP, REPLACE], ids=["skip", "replace"])
def test_what_is_no_samples_fault_is_raised(error: Any, policy: lk.BadSamples) -> None:
    class Stops(Damaged):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise error
            return index

    class StopsMany(Stops):
        def __getitems__(self, indices: Sequence[int]) -> list[Any]:
            return [self[index] for index in indices]

    for kind in (Stops, StopsMany):
        before = generator_states()
        loader = lk.Loader(kind(set()), 4, bad_samples=policy)
        taken = []
        with pytest.raises(error):
            taken.extend(loader)
        assert len(taken) == 1
        assert generator_states() == before


def dies(sample: int) -> int:
    if sample == 7:
        os._exit(3)
    return sample


def test_a_workers_death_is_no_bad_sample() -> None:
    loader = lk.Loader(MapDataset(list(range(SIZE)), dies), 4, num_workers=1, bad_samples=SKIP)
    with pytest.raises(RuntimeError, match="ended by itself, with exit code 3"):
        list(loader)
    assert not loader.bad_samples


def test_samples_that_do_not_fit_stay_an_error() -> None:
    class Shapes(Damaged):
        def __getitem__(self, index: int) -> Any:
            super().__getitem__(index)
            return torch.zeros(3 if index == 6 else 2)

    with pytest.raises(Exception, match=r"\(samples 5, 6\)"):
        list(lk.Loader(Shapes({4}), 4, bad_samples=SKIP))


class Together(Damaged):
    """Each sample can be read, but not with others."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        if len(indices) > 1:
            raise ValueError("too many")
        return [0]


def test_samples_that_cannot_be_read_together_are_an_error() -> None:
    with pytest.raises(ValueError, match="too many") as caught:
        list(lk.Loader(Together(set()), 4, bad_samples=SKIP))
    assert "each of these samples can be read by itself" in caught.value.__notes__[0]


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("policy", [SKIP, REPLACE], ids=["skip", "replace"])
def test_data_that_is_all_bad_is_an_error(name: str, policy: lk.BadSamples) -> None:
    with pytest.raises(lk.BadSamplesError, match="32 other samples could not be read either"):
        list(make(DATASETS[name](set(range(SIZE))), 4, policy))


def test_a_plan_without_an_order_is_refused() -> None:
    class Own(lk.Plan):
        world = lk.World(0, 1)
        step = 1

        def with_world(self, world: lk.World) -> Any:
            return self

        def key(self, epoch: int) -> str:
            return "own-1"

        def remaining(self, cursor: lk.Cursor) -> int:
            return 1

        def advance(self, cursor: lk.Cursor, batches: int = 1) -> lk.Cursor:
            return cursor

        def keys(self, cursor: lk.Cursor) -> Iterator[Any]:
            return iter(())

    with pytest.raises(ValueError, match=r"takes replacements from the plan.s order, and Own has no attribute `order`"):
        lk.Loader(Damaged(set()), plan=Own(), bad_samples=SKIP)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "ignore"}, "policy is 'ignore'"),
        ({"max_count": -1}, "max_count is -1"),
        ({"max_count": 1.5}, "max_count is 1.5"),
        ({"max_rate": 1.5}, "max_rate is 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lk.BadSamples(**settings)


class LocalError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_errors_that_do_not_pickle_are_still_told() -> None:
    error = portable(LocalError(1, 2))
    assert isinstance(error, RuntimeError)
    assert "LocalError: 1 and 2" in str(error)
    assert isinstance(pickle.loads(pickle.dumps(error)), RuntimeError)


def test_the_count_stays_small() -> None:
    count = BadSampleCount(SKIP)
    bad = lk.BadSample(0, 1, 1, "x", None)
    for batch in range(1, 5001):
        count.add(Reported(0, [bad], ValueError()), epoch=0, batches=batch, seen=1e9)
    assert [count.at(0, batches) for batches in (4990, 5000, 6000)] == [4990, 5000, 5000]
    assert len(pickle.dumps(count)) < 100_000
