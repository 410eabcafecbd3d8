"""Bad samples of streams on several ranks whose epochs end together: as many batches on all, exact resumes."""

import functools
import itertools
import json
from collections import Counter
from typing import Any

import pytest
import tier
import torch
from bad_stream_data import ALL, BAD, NAMES, SKIP, Read, found_by
from stream_ranks import on_ranks, values

import loaderkit as lk

EPOCHS = 3
pytestmark = pytest.mark.filterwarnings("ignore:Loader. an epoch without more batches")


class Fail:
    """A transform that fails at some samples; it draws nothing, as the ranks are threads of one process here."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad

    def __call__(self, value: int) -> int:
        if value in self.bad:
            raise KeyError(value)
        return value


def make(where: str, bad: set[int], rank: int, ranks: int, store: Any, **settings: Any) -> lk.Loader:
    reads = {"read": bad, "both": set(sorted(bad)[::2])}[where]
    stream = lk.StreamDataset(NAMES, Read(reads), transform=Fail(bad - reads), lanes=3, window=5, shuffle=True, seed=5)
    settings = {"batch_size": 2, "bad_samples": SKIP, "collate_fn": torch.tensor, **settings}
    return lk.Loader(stream, world=lk.World(rank, ranks), store=store, **settings)


def passes_of(where: str, bad: set[int], ranks: int) -> list[list[Any]]:
    """What each rank reads by itself, pass after pass."""
    loaders = [make(where, bad, rank, ranks, None, stop="each") for rank in range(ranks)]
    return [[values(list(loader)) for _ in range(8)] for loader in loaders]


def run(loader: lk.Loader) -> tuple[list[Any], list[Any], Any]:
    """Read some epochs; return their batches, the state before each batch and at the last one, and the final state."""
    epochs: list[Any] = []
    states = [loader.state_dict()]
    while len(epochs) < EPOCHS:
        epochs.append([])
        for batch in loader:
            epochs[-1].append(batch.tolist())
            states.append(loader.state_dict())
    return epochs, json.loads(json.dumps(states)), loader.state_dict()


@pytest.mark.each_value
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("where", ["read", "both"])
@pytest.mark.parametrize("bad", BAD)
def test_epochs_end_together_without_the_bad_samples(bad: str, where: str, ranks: int) -> None:
    """Each rank reads what it reads by itself; at its end it stops with the shortest, or begins its next pass."""
    alone = passes_of(where, BAD[bad], ranks)
    for epoch in range(8):
        found = Counter(value for passes in alone for batch in passes[epoch] for value in batch)
        assert found == Counter(set(ALL) - BAD[bad])
    for stop in ("shortest", "repeat"):
        results = on_ranks(
            ranks, lambda rank, store, stop=stop: run(make(where, BAD[bad], rank, ranks, store, stop=stop))
        )
        for epoch in range(EPOCHS):
            lengths = [len(passes[epoch]) for passes in alone]
            wanted = min(lengths) if stop == "shortest" else max(lengths)
            for passes, (epochs, _, _) in zip(alone, results, strict=True):
                following = list(itertools.chain(*passes[epoch:]))
                assert epochs[epoch] == following[:wanted]
        ends = [end for _, _, end in results]
        assert all(end == ends[0] for end in ends)
        assert ends[0]["cursor"] == {"epoch": EPOCHS, "batches": 0, "bad": [0] * ranks}


@pytest.mark.each_value
@pytest.mark.parametrize("stop", ["shortest", "repeat"])
@pytest.mark.parametrize("bad", ["every second", "whole shards", "a run over windows"])
def test_a_resume_continues_the_uninterrupted_run(bad: str, stop: str) -> None:
    """At every stop, over epochs' edges; the state is the same on all ranks."""

    def whole(rank: int, store: Any) -> Any:
        return run(make("both", BAD[bad], rank, 2, store, stop=stop))

    results = on_ranks(2, whole)
    batches = [[batch for epoch in epochs for batch in epoch] for epochs, _, _ in results]
    states = results[0][1]
    assert states == results[1][1]
    assert len(states) == len(batches[0]) + 1 == len(batches[1]) + 1 > 7
    for at, state in tier.some(enumerate(states)):
        assert len(json.dumps(state)) < 1024

        def resumed(rank: int, store: Any, state: Any = state) -> Any:
            loader = make("both", BAD[bad], rank, 2, store, stop=stop)
            loader.load_state_dict(state)
            rest = [batch for _ in range(EPOCHS - loader.cursor.epoch) for batch in values(list(loader))]
            return rest, loader.state_dict()

        for rank, (rest, end) in enumerate(on_ranks(2, resumed)):
            assert batches[rank][:at] + rest == batches[rank]
            assert end == states[-1]


@pytest.mark.parametrize("stop", ["shortest", "repeat"])
def test_each_rank_goes_on_with_its_own_count(stop: str) -> None:
    """As the ranks tell each other theirs when a state is made."""

    def work(rank: int, store: Any, state: Any = None) -> list[Any]:
        """Return each state of the epoch, and how many bad samples this rank has found by then."""
        loader = make("both", BAD["every second"], rank, 2, store, stop=stop, batch_size=1)
        if state is not None:
            loader.load_state_dict(state)
        return [(json.loads(json.dumps(loader.state_dict())), len(loader.bad_samples)) for _ in loader][:-1]

    first, second = on_ranks(2, work)
    assert [state for state, _ in first] == [state for state, _ in second]
    counts = [list(found) for found in zip(*([found for _, found in rank] for rank in (first, second)), strict=True)]
    assert counts == [state["cursor"].get("bad", [0, 0]) for state, _ in first]
    assert counts[0] != counts[-1]
    assert any(one != other for one, other in counts)
    for at, (state, _) in enumerate(first, 1):
        for rank in on_ranks(2, functools.partial(work, state=state)):
            assert [later for later, _ in rank] == [later for later, _ in first[at:]]


@pytest.mark.parametrize("stop", ["shortest", "repeat"])
@pytest.mark.parametrize(("old", "new"), [(2, 1), (3, 2), (1, 3)])
def test_other_ranks_take_over_what_is_left(old: int, new: int, stop: str) -> None:
    """Each good sample comes once, or twice if its rank repeated it already."""
    bad = BAD["first and last of shards"]

    def begin(at: int, rank: int, store: Any) -> Any:
        loader = make("both", bad, rank, old, store, stop=stop, batch_size=1)
        return values(list(itertools.islice(loader, at))), found_by(loader), loader.state_dict()

    for at in (1, 2):
        begun = on_ranks(old, functools.partial(begin, at))
        assert begun[0][2]["cursor"]["epoch"] == 0
        loaders = [make("both", bad, rank, new, None, stop="each") for rank in range(new)]
        rests = []
        for loader in loaders:
            loader.load_state_dict(begun[0][2])
            rests.append(values(list(loader)))
        found = Counter(value for part in [*(each[0] for each in begun), *rests] for batch in part for value in batch)
        left_out = sum((each[1] for each in begun), Counter[int]()) + sum(map(found_by, loaders), Counter[int]())
        assert set(found) == set(ALL) - bad
        assert set(left_out) == bad
        if stop == "shortest":
            assert max(found.values()) == max(left_out.values()) == 1


@pytest.mark.parametrize("stop", ["shortest", "repeat"])
def test_too_many_on_one_rank_end_all_in_time(stop: str) -> None:
    """Each rank judges its own samples; the others name the rank that they waited for."""
    bad = BAD["whole shards"]
    errors: list[str] = [""] * 3

    def work(rank: int, store: Any) -> None:
        policy = lk.BadSamples("skip", max_count=0, max_rate=1)
        loader = make("read", bad, rank, 3, store, stop=stop, bad_samples=policy, meet_timeout_s=1)
        try:
            for _ in range(EPOCHS):
                list(loader)
        except RuntimeError as error:
            errors[rank] = str(error)

    on_ranks(3, work)
    assert all(errors)
    assert any("bad samples in epoch 0, wanted at most max_count=0" in error for error in errors)
    assert any("did not say in time whether it has another batch" in error for error in errors)
