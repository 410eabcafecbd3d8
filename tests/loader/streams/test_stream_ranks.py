"""Streams on several ranks: states that meet in a store, epochs that end together, what is missing said."""

import functools
import itertools
import json
import time
from typing import Any

import pytest
import tier
import torch.distributed as dist
from drawing import drawing_collate, equal
from gloo_ranks import on_gloo
from stream_data import ids, make_loader, make_stream
from stream_ranks import on_ranks, values

import loaderkit as lk
from loaderkit.lightning.history import History
from loaderkit.lightning.loaders import TrainLoader

SIZES = [12, 3, 0, 9, 14, 7, 7, 5]


def rank_loader(rank: int, ranks: int, store: Any, **settings: Any) -> Any:
    return make_loader(SIZES, 3, world=lk.World(rank, ranks), store=store, transform=None, **settings)


ENDS: list[dict[str, Any]] = [{"steps": 4}, {"stop": "shortest"}, {"stop": "repeat"}]


@pytest.mark.each_value
@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_saves_the_state_of_all_and_resumes_exactly(ranks: int, ends: dict[str, Any]) -> None:
    """At every stop over epochs' edges; also if one rank repeats its data and another does not yet."""
    epochs = 3

    def begin(rank: int, store: Any, stop: int) -> Any:
        loader, head = rank_loader(rank, ranks, store, collate_fn=None, **ends), list[Any]()
        while len(head) < stop:
            head += values(list(itertools.islice(loader, stop - len(head))))
        return head, json.loads(json.dumps(loader.state_dict()))

    def resume(rank: int, store: Any, state: Any = None) -> Any:
        loader = rank_loader(rank, ranks, store, collate_fn=None, **ends)
        if state is not None:
            loader.load_state_dict(state)
        rest = [batch for _ in range(epochs - loader.cursor.epoch) for batch in values(list(loader))]
        return rest, loader.state_dict()

    whole, end = zip(*on_ranks(ranks, resume), strict=True)
    assert all(state == end[0] for state in end)
    assert len(whole[0]) >= 9
    for stop in tier.some(range(len(whole[0]))):
        heads, states = zip(*on_ranks(ranks, functools.partial(begin, stop=stop)), strict=True)
        assert all(state == states[0] for state in states)
        assert states[0]["missing"] == []
        for rank, (rest, after) in enumerate(on_ranks(ranks, functools.partial(resume, state=states[0]))):
            assert heads[rank] + rest == whole[rank]
            assert after == end[0]


@pytest.mark.parametrize("stop", ["shortest", "repeat"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_epoch_ends_on_all_ranks_at_once(ranks: int, stop: str) -> None:
    """At the last step that all have a batch for; or when all have read their part, and shorter ones are repeated."""

    def run(rank: int, store: Any, stop: str) -> Any:
        loader = rank_loader(rank, ranks, store, stop=stop, collate_fn=None)
        return [values(list(loader)) for _ in range(3)], loader.state_dict()

    passes = [part for part, _ in on_ranks(ranks, functools.partial(run, stop="each"))]
    epochs, states = zip(*on_ranks(ranks, functools.partial(run, stop=stop)), strict=True)
    for epoch in range(2):
        lengths = [len(part[epoch]) for part in passes]
        assert 1 < min(lengths) < max(lengths)  # else the law says nothing
        steps = min(lengths) if stop == "shortest" else max(lengths)
        for part, found in zip(passes, epochs, strict=True):
            wanted = (part[epoch] + part[epoch + 1])[:steps]  # what is repeated is the rank's next pass
            assert len(found[epoch]) == steps
            assert found[epoch][: len(wanted)] == wanted
    assert all(state == states[0] for state in states)
    assert states[0]["cursor"] == {"epoch": 3, "batches": 0, "bad": [0] * ranks}


def test_a_rank_without_data_ends_a_shortest_epoch_at_once() -> None:
    def work(rank: int, store: Any) -> Any:
        loader = make_loader([5], 2, world=lk.World(rank, 2), store=store, stop="shortest")
        return len(list(loader)), loader.cursor.epoch

    with pytest.warns(UserWarning, match="rank 1 of 2 found no samples in its part of 1 shards"):
        assert on_ranks(2, work) == [(0, 1), (0, 1)]


def test_a_state_that_misses_a_rank_says_so_and_is_refused() -> None:
    loader = rank_loader(0, 3, dist.HashStore(), steps=4, meet_timeout_s=0.1)
    with pytest.warns(UserWarning, match=r"rank 1, 2 did not give its state at batch 0 of epoch 0 in time"):
        state = loader.state_dict()
    assert state["missing"] == [1, 2]
    with pytest.raises(ValueError, match=r"cannot resume: the state misses rank 1, 2 of 3"):
        rank_loader(0, 3, None, steps=4).load_state_dict(state)


def test_a_silent_rank_is_named() -> None:
    loader = make_loader(SIZES, world=lk.World(0, 2), store=dist.HashStore(), stop="shortest", meet_timeout_s=0.1)
    with pytest.raises(
        RuntimeError, match="rank 1 did not say in time whether it has another batch after 0 of epoch 0"
    ):
        next(iter(loader))


def test_without_a_store_ranks_states_can_be_merged() -> None:
    loaders = [make_loader(SIZES, world=lk.World(rank, 2), steps=5) for rank in range(2)]
    heads = []
    for loader in loaders:
        iterator = iter(loader)
        heads.append([next(iterator) for _ in range(3)])
    states = [loader.state_dict() for loader in loaders]
    assert [state["missing"] for state in states] == [[1], [0]]
    whole = lk.merge_states(states)
    for rank in range(2):
        again = make_loader(SIZES, world=lk.World(rank, 2), steps=5)
        again.load_state_dict(whole)
        uninterrupted = list(make_loader(SIZES, world=lk.World(rank, 2), steps=5))
        assert equal(heads[rank] + list(again), uninterrupted)
    with pytest.raises(ValueError, match="no states to merge"):
        lk.merge_states([])
    with pytest.raises(ValueError, match="different runs or batches: cursor"):
        lk.merge_states([states[0], make_loader(SIZES, world=lk.World(1, 2), steps=5).state_dict()])


def test_what_several_ranks_need_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"2 ranks read data of unknown length.*steps=..., stop='shortest'"):
        next(iter(make_loader(SIZES, world=lk.World(0, 2))))
    with pytest.raises(ValueError, match=r"4 lanes for 5 ranks.*lanes=5"):
        next(iter(make_loader(SIZES, world=lk.World(0, 5), steps=2)))
    with pytest.raises(RuntimeError, match=r"end an epoch together, 2 ranks need torch.distributed or store="):
        next(iter(make_loader(SIZES, world=lk.World(0, 2), stop="shortest")))
    with pytest.raises(RuntimeError, match=r"rank 1 of 2 found no samples in its part of 1 shards, wanted 4 batches"):
        next(iter(make_loader([9], world=lk.World(1, 2), steps=4)))


def test_two_loaders_over_shards_of_the_same_names_do_not_mix_up_their_values() -> None:
    """Training and validation data may be read from the same shards."""

    def work(rank: int, store: Any) -> Any:
        lengths = []
        for sizes in (SIZES, [2 * size for size in SIZES]):
            stream = lk.StreamDataset(list("abcdefgh"), Sized(sizes), lanes=4)
            loader = lk.Loader(stream, 1, world=lk.World(rank, 2), store=store, stop="shortest")
            lengths.append(len(list(loader)))
        return lengths

    first, second = on_ranks(2, work)
    assert first == second
    assert first[1] == 2 * first[0] > 20


class Late:
    """A store for a rank that sees late what the other one has left."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def check(self, keys: list[str]) -> bool:
        time.sleep(0.1)
        found: bool = self._store.check(keys)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("stop", ["shortest", "repeat"])
def test_a_late_rank_does_not_read_answers_of_an_earlier_pass(stop: str) -> None:
    """As in evaluation: each pass is that of epoch 0."""

    def work(rank: int, store: Any) -> Any:
        store = Late(store) if rank else store
        loader = make_loader(
            [3, 3], 3, world=lk.World(rank, 2), store=store, stop=stop, transform=None, collate_fn=None
        )
        passes = []
        for _ in range(3):
            loader.seek(epoch=0)
            passes.append([str(batch) for batch in loader])
        return passes

    for passes in on_ranks(2, work):
        assert [len(each) for each in passes] == [1, 1, 1]
        assert passes[0] == passes[1] == passes[2]


def test_a_second_loader_does_not_read_answers_of_the_first() -> None:
    def work(rank: int, store: Any) -> Any:
        store, passes = Late(store) if rank else store, []
        for saves_first in (True, False):
            loader = make_loader([3, 3], 3, world=lk.World(rank, 2), store=store, stop="shortest", collate_fn=None)
            if saves_first:
                loader.state_dict()
            passes.append(len([str(batch) for batch in loader]))
        return passes

    assert on_ranks(2, work) == [[1, 1], [1, 1]]


class Sized:
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __call__(self, shard: str, start: int) -> range:
        return range(start, self.sizes["abcdefgh".index(shard)])


def test_left_epochs_of_steps_do_not_mix_up_their_states() -> None:
    """The same epoch and batch may mean other places after a break."""

    def work(rank: int, store: Any) -> Any:
        loader = rank_loader(rank, 2, store, steps=3, collate_fn=None)
        states = []
        for breaks in (False, True):
            loader.seek(epoch=0)
            for _ in loader:
                if breaks:
                    break
            next(iter(loader))
            states.append(loader.state_dict())
        return states

    first, second = on_ranks(2, work)
    assert first == second
    assert first[0]["cursor"] == first[1]["cursor"] == {"epoch": 1, "batches": 1, "bad": [0, 0]}
    assert first[0]["lanes"] != first[1]["lanes"]


def meet(rank: int) -> tuple[int, list[int], dict[str, Any]]:
    loader = lk.Loader(make_stream(SIZES), 4, stop="shortest", num_workers=1, collate_fn=drawing_collate)
    batches = list(loader)
    next(iter(loader))
    return len(batches), ids(batches), loader.state_dict()


def test_ranks_meet_through_the_process_group() -> None:
    (batches, first, state), (batches_1, second, state_1) = on_gloo(2, meet)
    assert batches == batches_1 > 3
    assert not set(first) & set(second)
    assert state == state_1
    assert state["missing"] == []


@pytest.mark.parametrize("stop", ["steps", "repeat"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_ranks_that_a_signal_finds_a_step_apart_each_save_a_whole_state(ahead: int, stop: str) -> None:
    """Rank 0 has learnt 3 batches, rank 1 has learnt 4; both hold the states around."""
    settings: dict[str, Any] = {"steps": 5} if stop == "steps" else {"stop": stop}

    def apart(rank: int, store: Any) -> Any:
        loader = rank_loader(rank, 2, store, collate_fn=None, kind=TrainLoader, **settings)
        history = History(loader.position, dict, lambda: None)
        loader.record_in(history)
        history.mark()
        iterator = iter(loader)
        for _ in range(4 + ahead):
            next(iterator)
        history.begin_batch(2)
        history.begin_batch(3)
        return history.state_after(3 + rank, over=False)

    def resumed(rank: int, store: Any) -> Any:
        loader = rank_loader(rank, 2, store, collate_fn=None, **settings)
        loader.load_state_dict(states[0])
        return values([next(iter(loader))])

    def whole(rank: int, store: Any) -> Any:
        return values(list(rank_loader(rank, 2, store, collate_fn=None, **settings)))

    states = on_ranks(2, apart)
    assert [state["missing"] for state in states] == [[], []]
    assert [state["cursor"]["batches"] for state in states] == [3, 4]
    assert on_ranks(2, resumed) == [part[3:4] for part in on_ranks(2, whole)]
