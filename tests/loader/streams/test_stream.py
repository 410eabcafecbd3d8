"""The laws for streams: exactly once, exact resume, workers that don't matter, other ranks."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from drawing import add_draws, drawing_collate, draws, equal
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_data import SIZES, Counted, expected, ids, make_loader, make_stream, names, with_draws
from stream_ranks import over_changed_ranks
from tier import examples

import loaderkit as lk
from loaderkit.testing import (
    assert_epochs_differ,
    assert_generators_untouched,
    assert_resumable,
)


class DrawnInRead(Counted):
    def __call__(self, shard: str, start: int) -> Iterator[Any]:
        for value in super().__call__(shard, start):
            yield value, draws()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("lanes", [1, 3, 4, 16])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_an_epoch_has_each_sample_once(sizes: list[int], lanes: int, shuffle: bool) -> None:
    loader = make_loader(sizes, lanes=lanes, shuffle=shuffle)
    first, second = list(loader), list(loader)
    assert len(first) > 1
    assert ids(first) == ids(second) == expected(sizes)
    assert loader.cursor.epoch == 2
    assert all(len(batch[0]) <= 4 for batch in first)
    assert len(first) <= sum(expected(sizes).values()) / 4 + lanes


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.filterwarnings("ignore:Loader. an epoch without more batches")
def test_ranks_share_each_epoch(sizes: list[int], ranks: int) -> None:
    """Also after an epoch in which a rank had only empty shards."""
    got = [make_loader(sizes, world=lk.World(rank, ranks), stop="each", lanes=5) for rank in range(ranks)]
    for _ in range(6):
        assert sum((ids(list(loader)) for loader in got), Counter()) == expected(sizes)


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("window", "batch_size", "shuffle"), [(3, 4, True), (3, 1, True), (100, 4, True), (1, 7, False)]
)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_a_stop_anywhere_resumes_exactly(sizes: list[int], shuffle: bool, window: int, batch_size: int) -> None:
    """Through JSON, with a second resume one batch later."""

    def make() -> Any:
        return make_loader(sizes, batch_size, shuffle=shuffle, window=window)

    epochs = 2 if (window, batch_size) == (3, 4) else 1
    assert_resumable(make, consumers=["loop"], epochs=epochs, ids=lambda batch: batch[0].tolist())


@pytest.mark.each_value
@pytest.mark.parametrize("steps", [1, 3, 13])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_epochs_of_steps_resume_exactly(sizes: list[int], steps: int) -> None:
    """Also as a Trainer draws, which never asks for more than len()."""
    assert len(make_loader(sizes, steps=steps)) == steps
    assert_resumable(lambda: make_loader(sizes, steps=steps), epochs={1: 9, 3: 4, 13: 1}[steps])


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_epochs_of_steps_go_on_through_the_data(sizes: list[int]) -> None:
    """The next epoch goes on after the last, and a cycle is complete before the next starts."""
    wanted = expected(sizes)
    loader = make_loader(sizes, steps=3)
    cycles, open_cycle = 0, Counter[int]()
    for _ in range(60):
        for batch in loader:
            open_cycle += ids([batch])
            if open_cycle.total() == wanted.total():
                assert open_cycle == wanted
                cycles, open_cycle = cycles + 1, Counter[int]()
            assert open_cycle.total() < wanted.total()
    assert cycles > 5
    assert loader.cursor.epoch == 60


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("settings", [{}, {"steps": 7}, {"shuffle": False, "drop_last": True}], ids=str)
@pytest.mark.filterwarnings("ignore:.*are idle", "ignore:This DataLoader will create")
def test_workers_dont_matter(workers: int, settings: dict[str, Any]) -> None:
    """Not even a number of them that does not divide the lanes."""
    sizes = [9, 0, 14, 3, 1, 8]
    mine, other = make_loader(sizes, **settings), make_loader(sizes, num_workers=workers, **settings)
    for _ in range(2):
        wanted, got = list(mine), list(other)
        assert len(wanted) > 5
        assert equal(got, wanted)
        assert other.state_dict() == mine.state_dict()


def test_pinning_leaves_places_and_states_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[Any]:
        loader = make_loader([9, 0, 14, 3])
        return [(batch, loader.state_dict()) for _ in range(2) for batch in loader]

    pinned: list[torch.Tensor] = []

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor.clone()

    wanted = run()
    assert len(wanted) >= 14
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    assert equal(run(), wanted)
    assert len(pinned) >= len(wanted)


@pytest.mark.parametrize("stop", range(1, 12, 2))
@pytest.mark.filterwarnings("ignore:.*are idle", "ignore:This DataLoader will create")
def test_a_run_resumes_on_other_workers(stop: int) -> None:
    """Exactly, with workers that had read ahead."""
    sizes = [9, 0, 14, 3, 1, 8]
    whole = list(make_loader(sizes))
    assert len(whole) > 10
    first = make_loader(sizes, num_workers=stop % 3)
    iterator = iter(first)
    head = [next(iterator) for _ in range(min(stop, len(whole)))]
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    then = make_loader(sizes, num_workers=(stop + 1) % 3)
    then.load_state_dict(state)
    rest = [] if then.cursor.epoch else list(then)
    assert equal(head + rest, whole)


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (2, 3), (4, 2), (3, 4)])
@pytest.mark.parametrize("stop", [0, 1, 2, 3])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.filterwarnings("ignore:Loader. an epoch without more batches")
def test_a_run_resumes_on_other_ranks(ranks: tuple[int, int], stop: int, shuffle: bool) -> None:
    """Each sample once over the epoch; with another batch size and number of workers too."""
    sizes = [20, 8, 18, 25, 17, 19, 16, 9, 11, 40, 12, 8, 0]

    def make(size: int, rank: int, ranks: int) -> Any:
        return make_loader(sizes, size, world=lk.World(rank, ranks), stop="each", shuffle=shuffle, lanes=6)

    batches = over_changed_ranks(make, *ranks, stop, batch_size=2)
    assert ids(batches) == expected(sizes)


@pytest.mark.parametrize("is_filtered", [False, True])
def test_a_collate_of_single_samples_draws_for_each(is_filtered: bool) -> None:
    stream = make_stream([5], transform=with_draws if is_filtered else None)
    stream = stream.filter(lambda sample: True) if is_filtered else stream
    one, two = (list(lk.Loader(stream, None, collate_fn=add_draws, num_workers=workers)) for workers in (0, 1))
    assert equal(one, two)
    drawn = torch.stack([sample[1] for sample in one])
    assert all(len(column.unique()) == 5 for column in drawn.T)


def test_draws_in_the_reader_resume_exactly() -> None:
    """A reader that draws for each sample: without windows the resume asks it from another sample on."""

    def make(shuffle: bool) -> Any:
        stream = lk.StreamDataset(names([7, 4, 9]), DrawnInRead(), lanes=2, window=4, shuffle=shuffle)
        return lk.Loader(stream, 3, collate_fn=drawing_collate, world=lk.World())

    for shuffle in (False, True):
        assert_resumable(lambda shuffle=shuffle: make(shuffle), consumers=["loop"], epochs=1)  # type: ignore[misc]


def test_streams_keep_the_laws_of_loaders() -> None:
    sizes = [9, 0, 14, 3]

    def make(**settings: Any) -> Any:
        return make_loader(sizes, **settings)

    assert_generators_untouched(make)
    assert_epochs_differ(make)


def test_shuffling_stays_within_windows_and_mixes_shards() -> None:
    sizes = [10] * 8
    stream = make_stream(sizes, lanes=2, window=20, transform=None)
    batches = [batch.tolist() for batch in lk.Loader(stream, 10, world=lk.World())]
    for lane in (0, 1):
        mine = batches[lane::2]
        for window in (mine[:2], mine[2:]):
            assert len({value // 1000 for batch in window for value in batch}) == 2  # its two shards
            assert len({value // 1000 for value in window[0]}) == 2  # are mixed
            assert window != [sorted(window[0] + window[1])[:10], sorted(window[0] + window[1])[10:]]


def test_without_shuffling_a_lane_keeps_the_order_of_the_shards() -> None:
    stream = make_stream([3, 2, 4], lanes=1, shuffle=False, transform=None)
    batches = [batch.tolist() for batch in lk.Loader(stream, 4, world=lk.World())]
    assert batches == [[0, 1, 2, 1000], [1001, 2000, 2001, 2002], [2003]]


def test_the_order_is_the_one_of_version_1() -> None:
    """Golden: a saved state means this order."""
    stream = make_stream([5, 2, 6], lanes=2, window=4, transform=None)
    assert stream.order() == "stream-1 in 2 lanes, shuffled by 4"
    batches = [batch.tolist() for batch in lk.Loader(stream, 3, world=lk.World())]
    assert batches == [[1000, 0, 1001], [2001, 2002, 2000], [1, 4, 3], [2003, 2005, 2004], [2]]


@pytest.mark.parametrize("stop", range(0, 60, 7))
def test_a_state_is_small(stop: int) -> None:
    """It grows with the lanes, and not with the shards or with how far the run is."""
    loader = make_loader([3] * 1000, lanes=16, transform=None, collate_fn=None)
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    assert len(json.dumps(loader.state_dict())) < 1000


def test_a_resume_reads_at_most_a_window_again() -> None:
    reads: list[int] = []

    def read(shard: str, start: int) -> Iterator[int]:
        for row in range(start, 1000):
            reads.append(row)
            yield row

    def make() -> Any:
        return lk.Loader(lk.StreamDataset(["a"], read, lanes=1, window=10, shuffle=True), 4, world=lk.World())

    loader = make()
    iterator = iter(loader)
    for _ in range(101):
        next(iterator)
    state = loader.state_dict()
    reads.clear()
    again = make()
    again.load_state_dict(state)
    assert next(iter(again)).tolist() == next(iterator).tolist()
    assert min(reads) == 400
    again.close()


@settings(max_examples=examples(60), derandomize=True)
@given(data=st.data(), sizes=st.lists(st.sampled_from([0, 1, 2, 5, 17]), min_size=1, max_size=9).filter(any))
def test_a_chain_of_other_ranks_and_batch_sizes_keeps_each_cycle_whole(data: Any, sizes: list[int]) -> None:
    """Any shards, lanes and windows: after the last stop one rank reads on to a cycle's end, and all came as often."""
    lanes, window, shuffle = (
        data.draw(st.integers(1, 6)),
        data.draw(st.sampled_from([1, 2, 5, 30])),
        data.draw(st.booleans()),
    )

    def loader_of(batch_size: int, rank: int, ranks: int, state: Any) -> Any:
        loader = make_loader(
            sizes, batch_size, world=lk.World(rank, ranks), lanes=lanes, window=window, shuffle=shuffle, steps=10**6
        )
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        return loader

    state: Any = None
    counts = Counter[int]()
    for _ in range(data.draw(st.integers(1, 4))):
        ranks, batch_size, count = (data.draw(st.integers(1, most)) for most in (lanes, 5, 6))
        loaders = [loader_of(batch_size, rank, ranks, state) for rank in range(ranks)]
        try:
            for loader in loaders:
                iterator = iter(loader)
                counts += ids([next(iterator) for _ in range(count)])
        except RuntimeError as error:
            if "found no samples in its part" not in str(error):
                raise
            return  # no shard with samples ever comes to that rank
        state = lk.merge_states([loader.state_dict() for loader in loaders])
    loader = loader_of(3, 0, 1, state)
    iterator = iter(loader)
    while any(place != [loader_cycle(loader), 0, 0, 0, 0] for place in loader.state_dict()["lanes"]):
        counts += ids([next(iterator)])
    cycles = loader_cycle(loader)
    assert cycles > 0  # else the law below is vacuous
    assert counts == Counter(dict.fromkeys(expected(sizes), cycles))


def loader_cycle(loader: Any) -> int:
    cycle: int = loader.state_dict()["lanes"][0][0]
    return cycle


def test_a_rank_without_samples_in_a_cycle_goes_on_to_the_next() -> None:
    """All in one shard, which comes to another lane in each cycle."""
    sizes = [0] * 7 + [5]
    for rank in range(8):
        batches = list(make_loader(sizes, 3, world=lk.World(rank, 8), lanes=8, steps=6))
        assert len(batches) == 6
        assert ids(batches) == Counter({value: 3 * count for value, count in expected(sizes).items()})
