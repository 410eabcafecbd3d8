"""Streams that take, skip, shuffle or batch the samples of others: each keeps the laws of streams."""

import inspect
import json
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data
from drawing import add_draws, drawing_collate, draws, equal
from stream_data import Counted, expected, ids, names

import loaderkit as lk

SIZES, OTHERS = [5, 0, 7, 1, 6, 3], [4, 9, 2]
pytestmark = [
    pytest.mark.filterwarnings("ignore:Loader. an epoch without more"),
    pytest.mark.filterwarnings("ignore:.*are idle"),
    pytest.mark.filterwarnings("ignore:interleave. the streams have"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Others(Counted):
    def __call__(self, shard: str, start: int) -> Any:
        return (100_000 + value for value in super().__call__(shard, start))


def plain(*, lanes: int = 3, **options: Any) -> lk.StreamDataset:
    return lk.StreamDataset(names(SIZES), Counted(), lanes=lanes, seed=5, **options)


def others(*, lanes: int = 3) -> lk.StreamDataset:
    return lk.StreamDataset(names(OTHERS), Others(), lanes=lanes, seed=5)


def is_kept(value: int) -> bool:
    return value % 3 != 1


def in_lanes(sizes: list[int], lanes: int) -> list[list[int]]:
    """The samples of each lane of a stream that does not shuffle."""
    return [
        [number * 1000 + row for number in range(lane, len(sizes), lanes) for row in range(sizes[number])]
        for lane in range(lanes)
    ]


def part_of(lanes: list[list[int]], count: int) -> tuple[Counter[int], Counter[int]]:
    """What `take(count)` and `skip(count)` give."""
    each, more = divmod(count, len(lanes))
    cuts = [each + (lane < more) for lane in range(len(lanes))]
    first = Counter(value for lane, cut in zip(lanes, cuts, strict=True) for value in lane[:cut])
    return first, Counter(value for lane in lanes for value in lane) - first


def batched(lanes: list[list[int]], size: int) -> list[list[list[int]]]:
    """The batches of each lane."""
    return [[lane[start : start + size] for start in range(0, len(lane), size)] for lane in lanes]


def flat(lanes: list[list[list[int]]]) -> Counter[int]:
    return Counter(value for lane in lanes for batch in lane for value in batch)


def is_even(batch: list[int]) -> bool:
    return batch[0] % 2 == 0


def pairs(*, lanes: int = 3, **options: Any) -> lk.StreamDataset:
    return plain(lanes=lanes).batch(2, collate_fn=list, **options)


ALL = expected(SIZES)
KEPT = Counter(value for value in ALL if is_kept(value))
MIXED = ALL + Counter(100_000 + value for value in expected(OTHERS))
MADE: dict[str, tuple[Callable[..., lk.StreamDataset], Callable[[int], Counter[int]]]] = {
    "take": (lambda **o: plain(**o).take(11), lambda lanes: part_of(in_lanes(SIZES, lanes), 11)[0]),
    "skip": (lambda **o: plain(**o).skip(11), lambda lanes: part_of(in_lanes(SIZES, lanes), 11)[1]),
    "take and skip": (
        lambda **o: plain(**o).take(18).skip(4),
        lambda lanes: part_of(in_lanes(SIZES, lanes), 18)[0] - part_of(in_lanes(SIZES, lanes), 4)[0],
    ),
    "shuffle": (lambda **o: plain(**o).shuffle(4), lambda lanes: ALL),
    "shuffle filtered": (lambda **o: plain(**o).filter(is_kept).shuffle(4), lambda lanes: KEPT),
    "shuffle twice": (lambda **o: plain(**o).shuffle(3).map(int).shuffle(50), lambda lanes: ALL),
    "shuffle mixed": (lambda **o: lk.interleave({plain(**o): 2, others(**o): 1}).shuffle(4), lambda lanes: MIXED),
    "mix shuffled": (
        lambda **o: lk.chain(plain(**o).filter(is_kept).shuffle(4), others(**o).take(100)),
        lambda lanes: KEPT + Counter(100_000 + value for value in expected(OTHERS)),
    ),
    "batch": (lambda **o: plain(**o).map(add_draws).batch(3, collate_fn=drawing_collate), lambda lanes: ALL),
    "batch filtered": (lambda **o: plain(**o).filter(is_kept).batch(2), lambda lanes: KEPT),
    "batch shuffled": (lambda **o: plain(**o).filter(is_kept).shuffle(4).batch(3), lambda lanes: KEPT),
    "shuffle batches": (lambda **o: pairs(**o).shuffle(3), lambda lanes: ALL),
    "filter batches": (
        lambda **o: pairs(**o).filter(is_even),
        lambda lanes: flat([list(filter(is_even, lane)) for lane in batched(in_lanes(SIZES, lanes), 2)]),
    ),
    "full batches": (
        lambda **o: pairs(drop_last=True, **o),
        lambda lanes: flat([[b for b in lane if len(b) == 2] for lane in batched(in_lanes(SIZES, lanes), 2)]),
    ),
    "take batches": (
        lambda **o: pairs(**o).take(6),
        lambda lanes: flat([lane[: 6 // lanes] for lane in batched(in_lanes(SIZES, lanes), 2)]),
    ),
    "skip batches": (
        lambda **o: pairs(**o).skip(3),
        lambda lanes: flat([lane[3 // lanes :] for lane in batched(in_lanes(SIZES, lanes), 2)]),
    ),
    "batch the taken": (
        lambda **o: plain(**o).take(18).skip(4).batch(2),
        lambda lanes: part_of(in_lanes(SIZES, lanes), 18)[0] - part_of(in_lanes(SIZES, lanes), 4)[0],
    ),
    "batches of batches": (lambda **o: pairs(**o).map(list).batch(2, collate_fn=list), lambda lanes: ALL),
    "mix batches": (
        lambda **o: lk.interleave({pairs(**o): 2, others(**o).batch(3, collate_fn=list): 1}),
        lambda lanes: MIXED,
    ),
    "batch the mixed": (lambda **o: lk.interleave({plain(**o): 2, others(**o): 1}).batch(2), lambda lanes: MIXED),
}
each = pytest.mark.parametrize(("make", "wanted"), MADE.values(), ids=MADE)


def ids_in(sample: Any) -> list[int]:
    """The ids of a sample, or of a batch, also with draws."""
    if isinstance(sample, tuple):
        return ids_in(sample[0])
    if isinstance(sample, list | torch.Tensor):
        return [value for each in sample for value in ids_in(each)] if getattr(sample, "ndim", 1) else [int(sample)]
    return [int(sample)]


def whole_collate(samples: list[Any]) -> tuple[torch.Tensor, list[Any], torch.Tensor]:
    """All ids, all samples, and a draw for the batch."""
    return torch.tensor([value for sample in samples for value in ids_in(sample)]), samples, draws()


def loader_of(stream: Any, batch_size: int = 2, rank: int = 0, ranks: int = 1, **options: Any) -> Any:
    return lk.Loader(
        stream.map(add_draws), batch_size, world=lk.World(rank, ranks), collate_fn=whole_collate, **options
    )


@each
@pytest.mark.parametrize("lanes", [1, 3])
def test_each_sample_comes_once_over_ranks(make: Any, wanted: Any, lanes: int) -> None:
    for ranks in range(1, min(lanes, 2) + 1):
        for epoch in range(2):
            batches = []
            for rank in range(ranks):
                loader = loader_of(make(lanes=lanes), rank=rank, ranks=ranks, stop="each")
                loader.seek(epoch=epoch)
                batches += list(loader)
            assert len(batches) > 1
            assert ids(batches) == wanted(lanes)


@each
def test_a_stop_anywhere_resumes_exactly(make: Any, wanted: Any) -> None:
    """At every stop, through JSON, and with draws."""
    whole = list(loader_of(make()))
    assert ids(whole) == wanted(3)
    iterator = iter(first := loader_of(make()))
    for stop in range(1, len(whole)):
        next(iterator)
        state = json.loads(json.dumps(first.state_dict()))
        then = loader_of(make())
        then.load_state_dict(state)
        assert then.state_dict() == state
        assert equal(list(then), whole[stop:])


@each
def test_workers_dont_matter(make: Any, wanted: Any) -> None:
    whole = list(loader_of(make()))
    iterator = iter(other := loader_of(make(), num_workers=2))
    head = [next(iterator) for _ in range(2)]
    state = other.state_dict()
    other.close()
    then = loader_of(make())
    then.load_state_dict(state)
    assert equal(head + list(then), whole)


@each
def test_other_ranks_go_on_with_each_sample_once(make: Any, wanted: Any) -> None:
    batches, states = [], []
    for rank in range(3):
        loader = loader_of(make(), 1, rank, 3, stop="each")
        iterator = iter(loader)
        batches.append(next(iterator))
        states.append(loader.state_dict())
    for rank in range(2):
        loader = loader_of(make(), 3, rank, 2, stop="each")
        loader.load_state_dict(lk.merge_states(states))
        batches += list(loader)
    assert ids(batches) == wanted(3)


@each
def test_streams_pickle_and_feed_a_bare_dataloader(make: Any, wanted: Any) -> None:
    stream = make()
    assert equal(list(pickle.loads(pickle.dumps(stream))), list(stream))
    bare: Any = torch_data.DataLoader(
        stream, None, num_workers=2, collate_fn=lambda sample: sample, multiprocessing_context="fork"
    )
    assert Counter(ids_in(list(bare))) == wanted(3)


def test_take_and_skip_share_a_stream() -> None:
    """For any number, also more than there are, and over lanes without a shard."""
    for count in (0, 1, 7, 22, 1000):
        for lanes in (1, 4, 9):
            first = Counter(plain(lanes=lanes).take(count))
            assert first + Counter(plain(lanes=lanes).skip(count)) == ALL
            assert sum(first.values()) <= count


def test_shuffles_differ_between_epochs_and_move_samples() -> None:
    stream = lk.StreamDataset(names([40]), Counted(), lanes=1).filter(lambda value: True).shuffle(10)
    loader = lk.Loader(stream, 40, world=lk.World())
    one, two = (next(iter(loader)).tolist() for _ in range(2))
    assert sorted(one) == sorted(two) == list(range(40))
    assert one != two
    assert [sorted(one[start : start + 10]) for start in (0, 10, 20, 30)] == [
        list(range(start, start + 10)) for start in (0, 10, 20, 30)
    ]


def test_a_shuffle_of_plain_shards_is_that_of_the_stream() -> None:
    """It shuffles the shards too."""
    verb, setting = plain().map(int).shuffle(4), plain(shuffle=True, window=4).map(int)
    assert list(verb) == list(setting)
    assert verb.order() == setting.order()


def test_bad_samples_are_left_out() -> None:
    stream = plain().map(fail).filter(lambda value: True).shuffle(4)
    loader = lk.Loader(stream, 2, world=lk.World(), bad_samples=lk.BadSamples("skip", max_rate=1))
    found = Counter(value for batch in loader for value in batch.tolist())
    assert found == Counter(value for value in ALL if not is_bad(value))
    assert len(loader.bad_samples) == sum(map(is_bad, ALL))


def test_batches_end_with_a_short_one_in_each_lane() -> None:
    lanes = in_lanes(SIZES, 3)
    assert [len(lane) for lane in lanes] == [6, 6, 10]
    sizes = Counter(len(batch) for batch in plain().batch(4))
    assert sizes == {4: 1 + 1 + 2, 2: 3}
    assert Counter(len(batch) for batch in plain().batch(4, drop_last=True)) == {4: 4}


@pytest.mark.parametrize("samples", [list(range(7)), [(row, "text", {"x": [row, 1.5]}) for row in range(7)]])
def test_batches_are_those_of_a_pipeline(samples: list[Any]) -> None:
    """By the same call."""
    pipeline = lk.Pipeline(lk.RecordDataset(samples))
    assert equal(list(pipeline.stream(lanes=1).batch(3)), list(pipeline.batch(3)))
    stream, indexed = (inspect.signature(kind.batch).parameters for kind in (lk.StreamDataset, lk.Pipeline))
    assert list(stream.values()) == list(indexed.values())


def test_each_sample_and_each_batch_draws_for_itself() -> None:
    def add(sample: Any) -> list[Any]:
        return [sample, lk.sample_rng().random()]

    loader = lk.Loader(plain().map(add).batch(2, collate_fn=add).map(add), None, world=lk.World())
    drawn = []
    for _ in range(2):
        for (samples, of_collate), of_map in loader:
            drawn += [of_collate, of_map, *(number for _, number in samples)]
    batches = sum(-(-len(lane) // 2) for lane in in_lanes(SIZES, 3))
    assert len(set(drawn)) == len(drawn) == 2 * (sum(SIZES) + 2 * batches)


def is_bad(value: int) -> bool:
    return value % 3 == 2


def fail(value: int) -> int:
    if is_bad(value):
        raise KeyError(value)
    return value


@pytest.mark.parametrize("window", [0, 2, 3, 4])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_bad_samples_are_left_out_of_batches(batch_size: int | None, window: int) -> None:
    """The next ones take their places; each is counted once, also over a resume anywhere.

    A window may begin between a bad sample and its batch.
    """

    def loader() -> Any:
        stream = plain().map(fail).batch(2, collate_fn=list)
        policy = lk.BadSamples("skip", max_rate=1)
        collate: Any = list if batch_size else None
        shuffled = stream.shuffle(window) if window else stream
        return lk.Loader(shuffled, batch_size, world=lk.World(), bad_samples=policy, collate_fn=collate)

    def bad(of: Any) -> list[tuple[str, int]]:
        return [(each.shard, each.index) for each in of.bad_samples]

    whole = list(first := loader())
    good = [[value for value in lane if not is_bad(value)] for lane in in_lanes(SIZES, 3)]
    assert Counter(ids_in(whole)) == Counter(value for lane in good for value in lane)
    found = [batch for batches in whole for batch in (batches if batch_size else [batches])]
    assert Counter(map(len, found)) == Counter(len(batch) for lane in batched(good, 2) for batch in lane)
    all_bad = bad(first)
    assert len(set(all_bad)) == len(all_bad) == sum(map(is_bad, ALL)) > 6
    iterator = iter(first := loader())
    for stop in range(1, len(whole)):
        next(iterator)
        then = loader()
        then.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert equal(list(then), whole[stop:])
        assert sorted(bad(first) + bad(then)) == sorted(all_bad)


def test_errors_of_a_collate_function_are_raised() -> None:
    """A batch that was left out would take good samples with it."""

    def refuse(samples: list[int]) -> None:
        raise ValueError("no batch")

    loader = lk.Loader(plain().batch(2, collate_fn=refuse), None, bad_samples=lk.BadSamples("skip", max_rate=1))
    with pytest.raises(ValueError, match="no batch") as raised:
        list(loader)
    assert "collating the batch that begins with sample 0 of shard '0:5'" in str(raised.value.__notes__)


def test_another_batch_size_is_refused() -> None:
    iterator = iter(before := lk.Loader(plain().batch(2)))
    next(iterator)
    with pytest.raises(lk.StateError, match=r"the state is for order 'batch-1\(2\) of .*'batch-1\(3\) of"):
        lk.Loader(plain().batch(3)).load_state_dict(before.state_dict())


def test_a_drawing_has_a_line_for_each_verb() -> None:
    stream = lk.interleave({plain().map(int): 2, others().filter(is_kept): 1}).take(9).map(str).pack(8)
    assert repr(stream).splitlines() == [
        "interleave of 2 streams:",
        "    StreamDataset: 6 shards in 3 lanes",
        "      .map(int)",
        "    StreamDataset: 3 shards in 3 lanes",
        "      .filter(is_kept)",
        "  .take(9)",
        "  .map(str)",
        "  .pack(8)",
    ]
    assert repr(plain().shuffle(7)) == "StreamDataset: 6 shards in 3 lanes, shuffled by 7"
    assert repr(plain().batch(2).map(list)) == "StreamDataset: 6 shards in 3 lanes\n  .batch(2)\n  .map(list)"


def test_data_that_has_changed_is_refused() -> None:
    def loader(sizes: list[int]) -> Any:
        stream = lk.StreamDataset(["a"], lambda _, start: range(start, sizes[0]), lanes=1)
        return lk.Loader(stream.filter(lambda value: True).shuffle(8), 4, world=lk.World())

    iterator = iter(before := loader([8]))
    next(iterator)
    then = loader([3])
    then.load_state_dict(before.state_dict())
    with pytest.raises(ValueError, match="4 samples of a window were used and more followed; now it has 3"):
        next(iter(then))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plain().take(-1), r"take\(-1\): wanted an integer of at least 0"),
        (lambda: plain().skip(1.5), r"skip\(1.5\): wanted an integer of at least 0"),
        (lambda: plain().shuffle(0), "shuffle: window is 0, wanted an integer of at least 1"),
        (lambda: lk.StreamDataset(["a"], lk.LogReader()).shuffle(), "reader LogReader.* reads files that grow"),
        (lambda: lk.StreamDataset(["a"], lk.LogReader()).take(3).shuffle(), "reads files that grow"),
        (lambda: plain().batch(0), "batch: found 0, wanted an integer of at least 1"),
        (lambda: plain().batch(True), "batch: found True, wanted an integer of at least 1"),
        (lambda: plain().pack(8).batch(2), r"packed rows, which do not stack. Give .*PackCollate\(row_length=8\)"),
        (lambda: plain().batch(2).pack(8), r"pack: the samples are batches, wanted documents. Pack before"),
    ],
)
def test_settings_that_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: plain(lanes=1).take(4), [0, 0, 5, 0, 0, 0, 0, 0, 0, 0]),
        (lambda: plain(lanes=1).take(4), [0, 0, 1, 0, 0]),
        (lambda: plain(lanes=1).take(4), [0, 0, 1, 0, 0, 0, 0, 0, 0]),
        (lambda: plain(lanes=1).skip(4), [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
        (lambda: plain(lanes=1).skip(4), [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]),
        (lambda: plain(lanes=1).filter(bool).shuffle(4), [0, 0, 0, 4, 0, 0, 0, 0, 0, 0]),
        (lambda: plain(lanes=1).filter(bool).shuffle(4), [0, 0, 0, 3, 0]),
        (lambda: plain(lanes=1).filter(bool).shuffle(4), [0, 0, 0, 3, 0, 0, 9, 0, 0, 0]),
        (lambda: plain(lanes=1).batch(4), [0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        (lambda: plain(lanes=1).batch(4), [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]),
        (lambda: plain(lanes=1).batch(4), [0, 0, 0, 1, 0]),
        (lambda: plain(lanes=1).batch(4), [0, 0, 0, 1, 0, 0, 9, 0, 0, 0]),
    ],
)
def test_places_that_no_state_has(make: Any, place: list[int]) -> None:
    assert make().flaw(0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) is None
    assert make().flaw(0, place)
