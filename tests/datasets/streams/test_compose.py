"""Streams of streams, and shards shared by lanes: each keeps all the laws of streams."""

import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.utils.data as torch_data
from drawing import drawing_collate, draws, equal
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_data import Counted, expected, names
from stream_ranks import over_changed_ranks
from tier import examples

import loaderkit as lk

FEW, MANY, HUGE = [5, 0, 3, 6, 2], [4, 1, 2, 0, 7, 1], [23, 1, 1, 0, 1]


def named(prefix: str, sizes: list[int]) -> Callable[..., lk.StreamDataset]:
    """Return a stream of which the samples are not another's."""
    base = 100_000 * "ab".index(prefix)

    def make(**options: Any) -> lk.StreamDataset:
        options = {"shuffle": True, "lanes": 3, "window": 4, "seed": 5, **options}
        return lk.StreamDataset(names(sizes), Shifted(base), **options)

    return make


class Shifted(Counted):
    def __init__(self, base: int) -> None:
        self.base = base

    def __call__(self, shard: str, start: int) -> Iterator[int]:
        return (self.base + value for value in super().__call__(shard, start))


def drawn(value: Any) -> tuple[Any, Any]:
    return value, draws()


def redrawn(sample: tuple[int, Any]) -> tuple[int, Any]:
    return sample[0], sample[1] + draws()


def is_kept(sample: Any) -> bool:
    """Drop a third, whether it is a value yet or with draws."""
    value = sample if isinstance(sample, int) else sample[0]
    return value % 3 != 1


def mapped(**options: Any) -> lk.StreamDataset:
    return named("a", MANY)(**options).map(drawn).map(redrawn)


def filtered(**options: Any) -> lk.StreamDataset:
    return named("a", MANY)(**options).map(drawn).filter(is_kept).map(redrawn)


def chained(**options: Any) -> lk.StreamDataset:
    return lk.chain(named("a", FEW)(**options), named("b", HUGE)(**options)).map(drawn)


def interleaved(**options: Any) -> lk.StreamDataset:
    return lk.interleave({named("a", MANY)(**options): 0.7, named("b", HUGE)(**options): 0.3}).map(drawn)


def shared(**options: Any) -> lk.StreamDataset:
    return named("a", HUGE)(**{"share": min(3, options.get("lanes", 3)), "block": 2, **options}).map(drawn)


def nested(**options: Any) -> lk.StreamDataset:
    first = named("a", FEW)(**options).filter(is_kept)
    second = named("b", HUGE)(**options, share=min(2, options.get("lanes", 3)), block=3)
    third = lk.StreamDataset(names(MANY), Shifted(200_000), lanes=options.get("lanes", 3), seed=5)
    return lk.chain(lk.interleave({first: 1, second: 2}), third).map(drawn)


COMPOSED = {
    "map": (mapped, expected(MANY)),
    "filter": (filtered, Counter(value for value in expected(MANY) if is_kept(value))),
    "chain": (chained, expected(FEW) + Counter(100_000 + value for value in expected(HUGE))),
    "interleave": (interleaved, expected(MANY) + Counter(100_000 + value for value in expected(HUGE))),
    "share": (shared, expected(HUGE)),
    "nested": (
        nested,
        Counter(value for value in expected(FEW) if is_kept(value))
        + Counter(100_000 + value for value in expected(HUGE))
        + Counter(200_000 + value for value in expected(MANY)),
    ),
}
each_composed = pytest.mark.parametrize(("make", "wanted"), COMPOSED.values(), ids=COMPOSED)
quiet = pytest.mark.filterwarnings(
    "ignore:Loader. an epoch without more",
    "ignore:.*are idle",
    "ignore:interleave. the streams have",
    "ignore:This DataLoader will create",
)


def loader_of(stream: Any, batch_size: int = 3, rank: int = 0, ranks: int = 1, **options: Any) -> Any:
    return lk.Loader(stream, batch_size, world=lk.World(rank, ranks), collate_fn=drawing_collate, **options)


def ids(batches: list[Any]) -> Counter[int]:
    return Counter(value for batch in batches for value in batch[0].tolist())


@quiet
@each_composed
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_each_sample_comes_once_over_ranks(make: Any, wanted: Counter[int], lanes: int, shuffle: bool) -> None:
    for ranks in range(1, min(lanes, 3) + 1):
        for epoch in range(2):
            batches = []
            for rank in range(ranks):
                loader = loader_of(make(lanes=lanes, shuffle=shuffle), rank=rank, ranks=ranks, stop="each")
                loader.seek(epoch=epoch)
                batches += list(loader)
            assert len(batches) > 3
            assert ids(batches) == wanted


@pytest.mark.each_value
@each_composed
@pytest.mark.parametrize(("shuffle", "window"), [(False, 4), (True, 1), (True, 4), (True, 30)])
def test_a_stop_anywhere_resumes_exactly(make: Any, wanted: Counter[int], shuffle: bool, window: int) -> None:
    """At every stop, through JSON, and once more one batch later."""
    whole = list(loader_of(make(shuffle=shuffle, window=window)))
    assert ids(whole) == wanted
    iterator = iter(first := loader_of(make(shuffle=shuffle, window=window)))
    for stop in range(1, len(whole)):
        next(iterator)
        state = json.loads(json.dumps(first.state_dict()))
        then = loader_of(make(shuffle=shuffle, window=window))
        then.load_state_dict(state)
        assert then.state_dict() == state
        again = iter(then)
        assert equal(next(again), whole[stop])
        chain = loader_of(make(shuffle=shuffle, window=window))
        chain.load_state_dict(json.loads(json.dumps(then.state_dict())))
        assert equal(list(chain) if stop + 1 < len(whole) else [], whole[stop + 1 :])
    assert first.cursor.epoch == 0


@pytest.mark.each_value
@quiet
@each_composed
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_dont_matter(make: Any, wanted: Counter[int], workers: int) -> None:
    """Nor does a stop among workers that have read ahead."""
    mine, other = loader_of(make()), loader_of(make(), num_workers=workers)
    whole = list(mine)
    assert ids(whole) == wanted
    iterator = iter(other)
    head = [next(iterator) for _ in range(2)]
    state = other.state_dict()
    other.close()
    then = loader_of(make(), num_workers=3 - workers)
    then.load_state_dict(state)
    assert equal(head + list(then), whole)
    assert then.state_dict() == mine.state_dict()


@quiet
@each_composed
@pytest.mark.parametrize("ranks", [(1, 2), (3, 2), (2, 3)])
@pytest.mark.parametrize("stop", [0, 1, 2])
def test_other_ranks_go_on_with_each_sample_once(
    make: Any, wanted: Counter[int], ranks: tuple[int, int], stop: int
) -> None:
    batches = over_changed_ranks(lambda *each: loader_of(make(), *each, stop="each"), *ranks, stop)
    assert ids(batches) == wanted


@each_composed
def test_a_bare_dataloader_gets_each_sample_once(make: Any, wanted: Counter[int]) -> None:
    """With workers that persist, in another order each epoch."""
    stream = make()
    loader: Any = torch_data.DataLoader(stream, 4, num_workers=2, persistent_workers=True, collate_fn=drawing_collate)
    epochs = []
    for epoch in (0, 1, 0):
        stream.set_epoch(epoch)
        epochs.append([batch[0].tolist() for batch in loader])
        assert Counter(value for batch in epochs[-1] for value in batch) == wanted
    assert epochs[0] == epochs[2] != epochs[1]


@each_composed
def test_composed_streams_pickle(make: Any, wanted: Counter[int]) -> None:
    assert equal(list(pickle.loads(pickle.dumps(make()))), list(make()))


sizes_of = st.lists(st.sampled_from([0, 0, 1, 2, 9, 25]), min_size=1, max_size=6)


@settings(max_examples=examples(80), derandomize=True)
@given(data=st.data(), left=sizes_of, right=sizes_of)
@quiet
def test_any_shards_any_stop_any_chain(data: Any, left: list[int], right: list[int]) -> None:
    """For any sizes, lanes, windows, shares and stops: exact on one rank, through three resumes."""
    lanes, window = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 3, 40]))
    options: dict[str, Any] = {"lanes": lanes, "window": window, "shuffle": data.draw(st.booleans())}
    share = {"share": data.draw(st.integers(1, lanes)), "block": data.draw(st.sampled_from([1, 4]))}
    kind = data.draw(st.sampled_from(["chain", "interleave", "again", "first", "share"]))

    def make() -> Any:
        a, b = named("a", left)(**options, **share), named("b", right)(**options).filter(is_kept)
        if kind == "share":
            return a.map(drawn)
        if kind == "chain":
            return lk.chain(a, b).map(drawn)
        return lk.interleave({a: 2, b: 1}, ends="all" if kind == "interleave" else kind).map(drawn)  # type: ignore[arg-type]

    try:
        whole = list(loader_of(make(), 2))
    except ValueError as error:
        if "a stream would be missing" not in str(error):
            raise
        return
    mine = expected(left)
    other = Counter(100_000 + value for value in expected(right) if is_kept(100_000 + value))
    if kind == "share":
        assert ids(whole) == mine
    elif kind in ("chain", "interleave"):
        assert ids(whole) == mine + other
    elif kind == "first":
        assert max(ids(whole).values(), default=1) == 1
    else:
        assert set(ids(whole)) == set(mine + other)
    stops = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3)))
    got: list[Any] = []
    state = None
    for stop in [*stops, len(whole)]:
        loader = loader_of(make(), 2)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        iterator = iter(loader)
        got += [next(iterator) for _ in range(stop - len(got))]
        state = loader.state_dict()
    assert equal(got, whole)


@pytest.mark.parametrize("weights", [(1, 1), (0.7, 0.3), (5, 3, 1), (0.01, 0.29, 0.7), (1, 1, 1, 1, 9)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_shares_are_exact_to_one_sample_after_any_number(weights: tuple[float, ...], shuffle: bool) -> None:
    """In each lane. So in every window they are exact to less than two."""
    sources = {
        lk.StreamDataset(names([900] * 2), Shifted(number * 100_000), lanes=2, shuffle=shuffle): weight
        for number, weight in enumerate(weights)
    }
    batches = itertools.islice(lk.Loader(lk.interleave(sources), 10, world=lk.World()), 160)
    found = [batch.tolist() for batch in batches]
    for lane in (0, 1):
        counts = [0] * len(weights)
        for position, value in enumerate((value for batch in found[lane::2] for value in batch), 1):
            counts[value // 100_000] += 1
            for count, weight in zip(counts, weights, strict=True):
                assert abs(count - position * weight / sum(weights)) < 1
        assert position == 800


@pytest.mark.parametrize(("ends", "a", "b"), [("all", 4, 20), ("first", 4, 4), ("again", 20, 20)])
def test_ends_decides_what_follows_a_source_that_ends(ends: Any, a: int, b: int) -> None:
    """One source of 4 samples and one of 20, half and half."""
    options = {"lanes": 1, "shuffle": False}
    stream = lk.interleave({named("a", [4])(**options): 1, named("b", [20])(**options): 1}, ends=ends)
    got = [batch.tolist()[0] for batch in lk.Loader(stream, 1, world=lk.World())]
    counts = [sum(value < 100_000 for value in got), sum(value >= 100_000 for value in got)]
    assert abs(counts[0] - a) <= 1
    assert abs(counts[1] - b) <= 1
    assert f"ends={ends}" in stream.order()
    if ends == "again":
        assert max(Counter(got).values()) == 5


@pytest.mark.parametrize(("a", "b", "lacking"), [(3, 4, 1), (1, 8, 3), (2, 3, 1)])
def test_lanes_without_one_of_the_sources_are_warned_of_once(a: int, b: int, lacking: int) -> None:
    one, two = named("a", [5] * a)(lanes=4), named("b", [5] * b)(lanes=4)
    with pytest.warns(
        UserWarning, match=rf"\[{a}, {b}\] shards for 4 lanes: in {lacking} of them a stream is missing.*lanes={a}"
    ) as said:
        stream = lk.interleave({one: 1, two: 1})
    assert len(said) == 1
    assert said[0].filename == __file__
    counts = ids(list(loader_of(pickle.loads(pickle.dumps(stream)).map(drawn))))
    assert counts == expected([5] * a) + Counter(100_000 + value for value in expected([5] * b))


def test_lanes_with_all_sources_or_with_none_are_not_warned_of() -> None:
    for parts in (2, 4, 9):
        lk.interleave({named("a", [5] * parts)(lanes=4): 1, named("b", [5] * max(parts, 4 * (parts > 2)))(lanes=4): 1})


def test_draws_don_t_depend_on_what_a_filter_drops() -> None:
    """A sample keeps its augmentation whatever comes of those before it."""

    def by_id(predicate: Any) -> dict[int, Any]:
        stream = named("a", [30])(lanes=1).filter(predicate).map(drawn)
        return {value: numbers for batch in loader_of(stream) for value, numbers in zip(*batch[:2], strict=True)}

    every = {int(value): numbers for value, numbers in by_id(lambda value: True).items()}
    some = {int(value): numbers for value, numbers in by_id(is_kept).items()}
    assert len(every) == 30
    assert len(some) == 20
    assert all(equal(every[value], numbers) for value, numbers in some.items())


@pytest.mark.parametrize("is_chain", [False, True])
def test_sources_draw_apart(is_chain: bool) -> None:
    """Two streams of the same seed don't shuffle and draw alike."""
    sources = [named("a", [40])(lanes=1, window=40), named("b", [40])(lanes=1, window=40)]
    composed = lk.chain(*sources) if is_chain else lk.interleave(dict.fromkeys(sources, 1))
    found = list(loader_of(composed.map(drawn), 1))
    order = [
        [batch[0].item() % 100_000 for batch in found if batch[0].item() // 100_000 == source] for source in (0, 1)
    ]
    assert len(order[0]) == len(order[1]) == 40
    assert order[0] != order[1]
    assert len({float(batch[1].sum()) for batch in found}) == 80


def test_steps_on_a_stream_leave_it_as_it_was() -> None:
    stream = named("a", [6])(lanes=1, shuffle=False)
    stream.map(str).filter(len)
    assert list(stream) == list(range(6))
    assert [sample for sample in stream.filter(is_kept).map(str)] == ["0", "2", "3", "5"]  # noqa: C416


@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_a_huge_shard_is_read_by_all_lanes(lanes: int) -> None:
    """In blocks; it is opened at each block's start, and at no other place."""
    reads: list[tuple[int, int]] = []

    def read(shard: str, start: int) -> Iterator[int]:
        for row in range(start, 100):
            reads.append((start, row))
            yield row

    stream = lk.StreamDataset(["a"], read, lanes=lanes, share=lanes, block=8)
    batches = [batch.tolist() for batch in lk.Loader(stream, 8, world=lk.World())]
    assert sorted(value for batch in batches for value in batch) == list(range(100))
    assert batches[:lanes] == [list(range(8 * lane, 8 * lane + 8)) for lane in range(lanes)]
    assert {start for start, _ in reads} == set(range(0, 100, 8))
    assert len(reads) == 100  # none is read in vain


@quiet
def test_composed_states_are_small() -> None:
    loader = loader_of(nested(lanes=16))
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 16 * 120


def test_a_failing_predicate_names_its_sample() -> None:
    stream = named("a", [3])(lanes=1, shuffle=False).filter(lambda value: 1 // (1 - value))
    with pytest.raises(ZeroDivisionError) as caught:
        list(loader_of(stream))
    assert "while transforming sample 1 of shard '0:3'" in caught.value.__notes__[0]


def test_another_composition_is_refused() -> None:
    a, b = named("a", FEW)(), named("b", FEW)()
    state = loader_of(lk.interleave({a: 1, b: 1})).state_dict()
    for other in (lk.interleave({a: 1, b: 2}), lk.interleave({a: 1, b: 1}, ends="again"), lk.chain(a, b)):
        with pytest.raises(ValueError, match="cannot resume: the state is for order 'interleave-1"):
            loader_of(other).load_state_dict(state)
    with pytest.raises(ValueError, match="cannot resume: the state is for shards"):
        loader_of(lk.interleave({a: 1, named("b", HUGE)(): 1})).load_state_dict(state)
    state = loader_of(shared()).state_dict()
    with pytest.raises(ValueError, match="shards shared by 3 in blocks of 2"):
        loader_of(shared(block=4)).load_state_dict(state)


A, B = named("a", FEW)(), named("b", FEW)()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lk.chain(), "chain: there are no streams"),
        (lambda: lk.chain(A, A), "chain: a stream comes twice"),
        (lambda: lk.chain(A, [1]), "chain: stream 1 is list, wanted a StreamDataset"),  # type: ignore[arg-type]
        (lambda: lk.chain(A, named("b", FEW)(lanes=4)), r"chain: the streams have lanes \[3, 4\], wanted one value"),
        (lambda: lk.chain(A, named("b", FEW)(seed=4)), r"chain: the streams have seed \[5, 4\], wanted one value"),
        (lambda: lk.interleave({A: 1, B: 0}), "interleave: weight 1 is 0, wanted a number above 0"),
        (lambda: lk.interleave({A: 1, B: 1}, ends="stop"), "interleave: ends is 'stop', wanted one of 'all', 'first'"),  # type: ignore[arg-type]
        (
            lambda: lk.interleave({A: 1, named("b", [9])(): 1}, ends="first"),
            r"the streams have \[5, 1\] shards for 3 lanes: in some lanes a stream would be missing. Give lanes=1",
        ),
        (lambda: named("a", FEW)(share=4), "share=4 of 3 lanes, wanted at most"),
        (lambda: named("a", FEW)(share=0), "share is 0, wanted an integer of at least 1"),
        (lambda: lk.StreamDataset(["a"], lk.from_start(str), share=2), r"share=2, and the reader .* can't skip"),
    ],
)
def test_what_does_not_fit_together_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
