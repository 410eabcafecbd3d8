"""The laws of ShardOrder: each index once, random access, few opens, few shards in use at a time."""

import itertools
import os
import threading
import time
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from index_formats import Bytes
from tier import examples

import loaderkit as lk
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.system.state import seal
from loaderkit.testing import assert_elastic, assert_exactly_once, assert_resumable

SHARDS = {
    "none": [],
    "one": [50],
    "one sample": [1],
    "empty ones": [0, 7, 0, 0, 12, 1, 0],
    "all empty": [0, 0],
    "one huge, many tiny": [1, 2, 1, 900, *[3] * 40],
    "even": [100] * 12,
    "more lanes than samples": [2, 0, 1],
}


def whole(order: lk.ShardOrder, epoch: int = 0) -> np.ndarray:
    return order.indices(epoch, 0, order.size(epoch))


@pytest.mark.parametrize("sizes", SHARDS.values(), ids=SHARDS)
@pytest.mark.parametrize("lanes", [1, 7, 16])
@pytest.mark.parametrize("window", [5, 65536])
@pytest.mark.parametrize("block", [1, 100])
def test_each_index_comes_once(sizes: list[int], lanes: int, window: int, block: int) -> None:
    order = lk.ShardOrder(sizes, lanes=lanes, window=window, block=block)
    assert order.size(0) == order.reach == sum(sizes)
    for epoch in range(2):
        assert sorted(whole(order, epoch).tolist()) == list(range(sum(sizes)))


@settings(max_examples=examples(100))
@given(
    sizes=st.lists(st.integers(0, 60), max_size=30),
    lanes=st.integers(1, 40),
    window=st.integers(1, 100),
    block=st.integers(1, 40),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 10**6),
)
def test_any_shards_come_once_at_random_access(
    sizes: list[int], lanes: int, window: int, block: int, seed: int, epoch: int
) -> None:
    """Independent of earlier calls: one by one, in any order, in any stretches."""
    make = lambda: lk.ShardOrder(sizes, lanes=lanes, window=window, block=block, seed=seed)  # noqa: E731
    expected = whole(make(), epoch)
    size = sum(sizes)
    assert sorted(expected.tolist()) == list(range(size))
    order = make()
    places = np.random.default_rng(seed).permutation(size)
    assert np.array_equal(order.at(epoch, places), expected[places])
    for place in places[:5].tolist():
        assert order.indices(epoch, place, place + 1).tolist() == [expected[place]]
        order.indices(epoch + 1, place, size)
    if size > 10 * lanes + 20 and window > 10:  # else there are few orders
        assert not np.array_equal(whole(make(), epoch + 1), expected)
        other = lk.ShardOrder(sizes, lanes=lanes, window=window, block=block, seed=seed + 1)
        assert not np.array_equal(whole(other, epoch), expected)


def test_evicted_windows_are_shuffled_the_same_way_again() -> None:
    order = lk.ShardOrder([10**5] * 10, window=65_536, lanes=1, block=1)  # of 16 windows, 4 are kept
    expected = whole(order)
    places = np.random.default_rng(0).permutation(10**6)[:50_000]
    assert np.array_equal(order.at(0, places), expected[places])


@pytest.mark.parametrize("sizes", SHARDS.values(), ids=SHARDS)
@pytest.mark.parametrize("lanes", [1, 7])
@pytest.mark.parametrize("block", [1, 20])
def test_spans_hold_all_positions_of_a_shard(sizes: list[int], lanes: int, block: int) -> None:
    order, ends = lk.ShardOrder(sizes, lanes=lanes, window=9, block=block), np.cumsum(sizes)
    for epoch in range(3):
        spans = order.spans(epoch, ends)
        assert spans is not None
        shard = np.searchsorted(ends, whole(order, epoch), side="right")
        for number, (first, last) in enumerate(zip(*spans, strict=True)):
            places = np.flatnonzero(shard == number)
            assert len(places) == sizes[number]
            if sizes[number]:
                assert first <= places[0] <= places[-1] <= last
            else:
                assert first > last
    assert order.spans(0, np.append(ends, sum(sizes))) is None


def test_spans_are_narrow() -> None:
    """In the middle of an epoch few shards are wanted, and about as many as are said to be in use."""
    order = lk.ShardOrder([100] * 200, lanes=8, window=100)
    spans = order.spans(0, np.cumsum(order.shard_sizes))
    assert spans is not None
    wanted = np.count_nonzero((spans[0] <= 10_000) & (spans[1] >= 10_000))
    assert 8 <= wanted <= 1.5 * order.shards_in_use


@pytest.mark.parametrize("block", [1, 64, 1000, 5000])
def test_a_pass_shuffles_each_window_once(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if more positions come from a lane in turn than are looked up at a time."""
    shuffles: list[int] = []

    class Counted(np.random.RandomState):
        def shuffle(self, x: Any) -> None:
            shuffles.append(len(x))
            super().shuffle(x)

    monkeypatch.setattr(np.random, "RandomState", Counted)
    order = lk.ShardOrder([7000] * 30, window=1024, block=block)
    for key in BatchPlan(order=order, batch_size=500).keys(lk.Cursor()):
        assert len(key.indices)
    lane = 7000 * 30 // 16
    assert 16 * lane // 1024 <= len(shuffles) <= 16 * (lane // 1024 + 2)
    assert sum(shuffles) == 7000 * 30


@pytest.mark.parametrize("samples", [10**6, 10**12])
def test_the_cost_does_not_grow_with_the_samples(samples: int) -> None:
    """Memory is that of the shards and of the windows used last."""
    order = lk.ShardOrder([samples // 1000] * 1000, block=256)
    tracemalloc.start()
    try:
        found = order.indices(3, samples // 3, samples // 3 + 50_000)
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()
    assert len(np.unique(found)) == 50_000
    assert 0 <= found.min() <= found.max() < samples


def test_the_golden_order() -> None:
    order = lk.ShardOrder([3, 0, 5, 8], seed=1, lanes=2, window=4, block=2)
    assert order.key(0) == "shards-5(d5bd352cad5d6e95, seed=1, lanes=2, window=4, block=2)"
    assert whole(order, 2).tolist() == [10, 9, 1, 0, 11, 8, 4, 3, 12, 14, 2, 5, 13, 15, 6, 7]
    large = lk.ShardOrder([10**6] * 300, seed=7, block=64)
    assert large.at(1, np.array([0, 1, 64, 10**7, 3 * 10**8 - 1])).tolist() == [
        220001086,
        220000850,
        114000415,
        276312517,
        140999571,
    ]


def lanes_of(sizes: list[int], lanes: int) -> np.ndarray:
    """The lane of each position, without the shuffle in the lanes."""
    positions = np.arange(sum(sizes))
    return lk.ShardOrder(sizes, lanes=lanes, window=1, block=4)._turns.places(positions)[0]


def test_lanes_are_equal_and_dealt_in_turn() -> None:
    dealt = lanes_of([10, 30, 1], 3)
    counts = np.bincount(dealt)
    assert counts.max() - counts.min() <= 1
    assert dealt[:28].tolist() == [0, 0, 0, 0, 2, 2, 2, 2, 1, 1, 1, 1] * 2 + [0, 0, 0, 0]
    # What is left of each lane comes at the end, lane by lane.
    assert dealt[36:].tolist() == [0, 0, 2, 1, 1]


def workers_per_shard(order: lk.Order, sizes: list[int], ranks: int, workers: int, batch_size: int) -> dict[int, set]:
    """The workers that read each shard. torch gives a rank's batches to its workers in turn."""
    ends = np.cumsum(sizes)
    readers: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for rank in range(ranks):
        plan = BatchPlan(order=order, batch_size=batch_size, world=lk.World(rank, ranks))
        for number, key in enumerate(plan.keys(lk.Cursor())):
            for shard in np.unique(np.searchsorted(ends, key.indices, side="right")).tolist():
                readers[shard].add((rank, number % workers))
    return readers


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("batch_size", [8, 32])
def test_a_shard_is_opened_by_at_most_two_workers_on_average(
    ranks: int, workers: int, factor: int, batch_size: int
) -> None:
    """If the lanes are a multiple of ranks x workers, and the block is the batch."""
    lanes = ranks * workers * factor
    sizes = np.random.default_rng(lanes).integers(300, 1500, 5 * lanes).tolist()
    order = lk.ShardOrder(sizes, lanes=lanes, window=256, block=batch_size)
    readers = workers_per_shard(order, sizes, ranks, workers, batch_size)
    assert set(readers) == set(range(len(sizes)))
    assert np.mean([len(found) for found in readers.values()]) <= 2
    if ranks * workers > 4:  # a plain shuffle opens each shard everywhere
        everywhere = workers_per_shard(lk.Shuffled(sum(sizes)), sizes, ranks, workers, batch_size)
        assert np.mean([len(found) for found in everywhere.values()]) > 4


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("window", [100, 1000])
def test_few_shards_are_in_use_at_a_time(lanes: int, window: int) -> None:
    """A stretch touches only the shards that its lanes reach, and a window at each end."""
    size, shards, block = 200, 400, 16
    order = lk.ShardOrder([size] * shards, lanes=lanes, window=window, block=block)
    found = whole(order)
    for rounds in (1, 5):
        stretch = rounds * lanes * block
        each = rounds * block + 2 * window  # of a lane, at most
        bound = lanes * (-(-each // size) + 2)  # the shards at a lane's ends are cut
        touched = [len(np.unique(found[start : start + stretch] // size)) for start in range(0, len(found), stretch)]
        assert 0 < max(touched) <= bound
    assert lanes > 4 or bound < shards / 4  # else the bound says nothing


def test_each_window_is_a_uniform_shuffle() -> None:
    """All 24 orders of a window of four are equally frequent (chi-square), over windows and over epochs."""
    order = lk.ShardOrder([4000], lanes=1, window=4, block=4)
    counts: dict[tuple[int, ...], int] = defaultdict(int)
    for epoch in range(12):
        lead = lk.derive_seed("lead", 0, epoch) % 4  # the first window lacks so many
        rows = order.indices(epoch, 4 - lead, 4 - lead + 3996).reshape(-1, 4)
        inside = rows - rows.min(1, keepdims=True)
        inside = inside[inside.max(1) == 3]  # other windows join two parts of the shard
        assert len(inside) >= 999 - 4
        for row in inside.tolist():
            counts[tuple(row)] += 1
    observed = np.array([counts[p] for p in itertools.permutations(range(4))])
    expected = observed.sum() / 24
    chi = ((observed - expected) ** 2 / expected).sum()
    assert chi < 49.7  # 23 degrees of freedom: once in a thousand


def test_shards_and_windows_move_between_epochs() -> None:
    """Samples have other neighbours in each epoch, also in one shard, within their lane of 1,250 samples."""
    for sizes in ([100] * 50, [5000]):
        order = lk.ShardOrder(sizes, lanes=4, window=50, block=10)
        first = [frozenset(order.indices(epoch, 0, 10).tolist()) for epoch in range(20)]
        assert len(set(first)) == 20
        spread = np.array([np.mean(list(batch)) for batch in first])
        assert spread.std() > 250


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shard_sizes": [[1]]}, r"shape \(1, 1\)"),
        ({"shard_sizes": [0.5]}, "dtype float64"),
        ({"shard_sizes": [3, -1]}, "integers of at least 0"),
        ({"lanes": 0}, "lanes is 0"),
        ({"block": True}, "block is True"),
        ({"window": 65537}, "window is 65537, wanted an integer from 1 to 65,536"),
    ],
)
def test_parameters_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lk.ShardOrder(**{"shard_sizes": [5], **settings})


def test_the_key_tells_orders_apart() -> None:
    make = lambda sizes=(5, 6), **changes: lk.ShardOrder(sizes, **changes).key(0)  # noqa: E731
    keys = [make(), make((6, 5)), make(seed=1), make(lanes=2), make(window=3), make(block=4)]
    assert len(set(keys)) == len(keys)
    assert max(map(len, keys)) < 120


class Logged(Bytes):
    """Shards that log the process that opens them."""

    def open(self, shard: str, index: ShardIndex) -> str:
        with Path(shard + ".log").open("a") as log:
            log.write(f"{os.getpid()}\n")
        return shard

    def read(self, handle: str, rows: np.ndarray, index: ShardIndex) -> list[Any]:
        time.sleep(0.001)  # so that each worker gets its share
        return super().read(handle, rows, index)


@pytest.mark.each_value
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("engine", ["auto", "ring", "torch"])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 4), (2, 2)])
def test_workers_open_few_shards(ranks: int, workers: int, engine: Any, tmp_path: Path) -> None:
    """Counted with four real workers, and the lanes that a Loader chooses."""
    shards = [tmp_path / f"{number:02}.bytes" for number in range(24)]
    for number, shard in enumerate(shards):
        shard.write_bytes(b"x" * (200 + 10 * number))
    data = Logged(tmp_path)
    seen = 0
    for rank in range(ranks):
        loader = lk.Loader(
            data, 8, shuffle=True, num_workers=workers, world=lk.World(rank, ranks), engine=engine, timeout=60
        )
        seen += sum(len(batch) for batch in loader)
        assert loader.describe().engine == ("torch" if engine == "torch" else "ring")
        loader.close()
    assert seen == len(data) == sum(data.shard_sizes)
    opened = [Path(f"{shard}.log").read_text().split() for shard in shards]
    assert all(opened)
    assert np.mean([len(set(who)) for who in opened]) <= 2
    assert np.mean([len(who) for who in opened]) <= 2  # none is opened again


class Sharded:
    """A dataset with shards. Its samples are their indices."""

    def __init__(self, sizes: list[int]) -> None:
        self.shard_sizes = np.array(sizes)

    def __len__(self) -> int:
        return int(self.shard_sizes.sum())

    def __getitem__(self, index: int) -> int:
        return index


SIZES = [11, 0, 30, 2, 19]


def make_loader(batch_size: int = 4, seed: int = 5, **settings: Any) -> lk.Loader:
    return lk.Loader(Sharded(SIZES), batch_size, shuffle=True, seed=seed, **settings)


def test_a_loader_takes_a_shard_order_by_itself() -> None:
    loader = make_loader()
    order = lk.ShardOrder(SIZES, seed=5, block=4)
    identity = loader.state_dict()["identity"]
    assert (identity["order"], identity["block"]) == (order.key(0), 4)
    assert [index for batch in loader for index in batch.tolist()] == whole(order).tolist()
    assert make_loader(batch_size=None).state_dict()["identity"]["block"] == 1
    plain = lk.Loader(Sharded(SIZES), 4)
    assert [index for batch in plain for index in batch.tolist()] == list(range(sum(SIZES)))


def test_shards_that_do_not_add_up_are_refused() -> None:
    dataset = Sharded(SIZES)
    dataset.__class__ = type("Longer", (Sharded,), {"__len__": lambda self: 99})
    with pytest.raises(ValueError, match="add up to 62 samples, its length is 99"):
        lk.Loader(dataset, shuffle=True)


def test_the_laws_hold_over_a_shard_order() -> None:
    assert_exactly_once(make_loader, worlds=(1, 2, 3), epochs=2)
    assert_resumable(make_loader)
    settings = [
        {"world_size": 1, "batch_size": 4},
        {"world_size": 2, "batch_size": 3},
        {"world_size": 2, "batch_size": 1},
    ]
    assert_elastic(make_loader, settings)


def test_another_batch_size_continues_the_same_order() -> None:
    """Also over a second resume, and in the epochs that follow."""
    order = lk.ShardOrder(SIZES, seed=5, block=4)
    loader = make_loader()
    first = next(iter(loader)).tolist()
    state = loader.state_dict()
    for batch_size in (7, 3):
        loader = make_loader(batch_size)
        loader.load_state_dict(state)
        first += next(iter(loader)).tolist()
        state = loader.state_dict()
    rest = [index for batch in loader for index in batch.tolist()]  # the same loader goes to its next epoch
    assert first == whole(order)[:14].tolist()
    assert rest == whole(order, 1).tolist()


def test_a_datamodule_continues_the_same_order_with_another_batch_size() -> None:
    """Also if the Trainer reloads the loaders in the run."""
    first = make_loader()
    batches = [index for batch in itertools.islice(first, 2) for index in batch.tolist()]
    data = lk.DataModule(train=Sharded(SIZES), loader=lk.LoaderConfig(batch_size=3, seed=5))
    data.setup("fit")
    data.load_state_dict(seal({"train": [first.state_dict()], "batches": 2, "epoch_over": False, "ended": []}))
    for _ in range(3):
        batches += [index for batch in data.train_dataloader() for index in batch.tolist()]
    order = lk.ShardOrder(SIZES, seed=5, block=4)
    assert batches == [index for epoch in range(3) for index in whole(order, epoch).tolist()]


def test_a_users_own_block_is_kept_and_another_refused() -> None:
    own = lk.Loader(Sharded(SIZES), 4, order=lk.ShardOrder(SIZES, seed=5, block=9), seed=5)
    with pytest.raises(ValueError, match=r"block=4.*block=9"):
        own.load_state_dict(make_loader().state_dict())


def test_loaders_in_several_threads_share_an_order() -> None:
    order = lk.ShardOrder([5000] * 20, lanes=8, window=2048, block=64)
    whole = [order.indices(epoch, 0, 100_000) for epoch in range(2)]
    right: list[bool] = []

    def read() -> None:
        loader = lk.Loader(lk.ArrayDataset(np.arange(100_000)), 256, order=order)
        right.extend(np.array_equal(torch.cat(list(loader)), wanted) for wanted in whole)

    for _ in range(5):
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert right == [True] * 30
