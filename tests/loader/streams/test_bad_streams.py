"""Bad samples of streams: consumed and left out, the lane's next ones in their place; the laws hold with them too."""

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tier
import torch
from bad_stream_data import ALL, BAD, FAST, NAMES, SKIP, Read, found_by
from drawing import BreakAt, add_draws, drawing_collate, equal, rows, take

import loaderkit as lk
from loaderkit.system.retry import TransientError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Loader. . workers for"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:Loader. an epoch without more batches"),
]


class Keep(BreakAt):
    """A filter that fails at some samples."""

    def __call__(self, value: int) -> bool:
        if value in self.bad:
            raise KeyError(value)
        return value % 5 != 1


def stream_of(bad_reads: set[int], bad_maps: set[int] = frozenset(), **settings: Any) -> Any:  # type: ignore[assignment]
    settings = {"lanes": 3, "window": 5, "seed": 5, "shuffle": True, **settings}
    return lk.StreamDataset(NAMES, Read(bad_reads), transform=BreakAt(bad_maps), **settings)


def filtered(bad: set[int]) -> Any:
    plain = lk.StreamDataset(NAMES, Read(set()), lanes=3, window=5, seed=5, shuffle=True)
    return plain.filter(Keep(bad)).map(add_draws)


def halves(bad: set[int]) -> list[Any]:
    return [
        lk.StreamDataset([NAMES[number] for number in part], Read(bad), lanes=3, window=5, seed=5)
        for part in ((0, 1, 3), (2, 4, 5))
    ]


STREAMS: dict[str, Callable[[set[int]], Any]] = {
    "read": stream_of,
    "read in order": lambda bad: stream_of(bad, shuffle=False),
    "transform": lambda bad: stream_of(set(), bad),
    "both": lambda bad: stream_of(set(sorted(bad)[::2]), set(sorted(bad)[1::2]), shuffle=False),
    "shared shards": lambda bad: stream_of(bad, share=2, block=2),
    "filter": filtered,
    "chain": lambda bad: lk.chain(*halves(bad)).map(add_draws),
    "interleave": lambda bad: lk.interleave(dict.fromkeys(halves(bad), 1.0)).map(BreakAt(bad)),
}


def make(stream: Any, batch_size: int | None = 4, policy: lk.BadSamples = SKIP, **settings: Any) -> lk.Loader:
    settings = {"world": lk.World(), "collate_fn": drawing_collate, **settings}
    return lk.Loader(stream, batch_size, bad_samples=policy, **settings)


@pytest.mark.each_value
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", STREAMS)
def test_good_samples_come_once_with_their_own_draws(name: str, bad: str, batch_size: int) -> None:
    """Batches are full but for a lane's last one; nothing is different for the others."""
    clean = dict(rows(list(make(STREAMS[name](set()), batch_size, lk.BadSamples()))))
    whole = set(ALL) - {value for value in ALL if name == "filter" and value % 5 == 1}
    assert set(clean) == whole
    loader = make(STREAMS[name](BAD[bad]), batch_size)
    batches = list(loader)
    found = rows(batches)
    assert dict(found) == {value: drawn for value, drawn in clean.items() if value not in BAD[bad]}
    assert len(found) == len(whole - BAD[bad])
    assert sum(len(batch[0]) < batch_size for batch in batches) <= 3
    assert all(len(batch[0]) for batch in batches)
    assert found_by(loader) == Counter(BAD[bad] & set(ALL))
    assert loader.cursor == lk.Cursor(epoch=1)


@pytest.mark.parametrize(
    ("name", "bad", "settings"),
    [
        *((name, bad, {}) for name in STREAMS for bad in ("a run over windows", "most")),
        *(
            (name, "every second", kind)
            for name in ("both", "interleave")
            for kind in ({"steps": 5}, {"drop_last": True})
        ),
    ],
)
def test_a_resume_continues_the_uninterrupted_run(name: str, bad: str, settings: dict[str, Any]) -> None:
    """At every stop over epochs' edges, bit for bit; the counts too."""
    stream = STREAMS[name](BAD[bad])
    count = {"a run over windows": 13, "every second": 11, "most": 6}[bad]
    loader = make(stream, 3, **settings)
    whole: list[Any] = []
    states, known = [json.loads(json.dumps(loader.state_dict()))], [0]
    while len(whole) < count:
        for batch in loader:
            whole.append(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
            known.append(len(loader.bad_samples))
            if len(whole) == count:
                break
    end = states[-1]
    for stop in tier.some(range(count)):
        resumed = make(stream, 3, **settings)
        resumed.load_state_dict(states[stop])
        rest, last = take(resumed, count - stop)
        assert equal(whole[:stop] + rest, whole)
        assert last == end
        assert known[stop] + len(resumed.bad_samples) == known[-1]
        assert len(json.dumps(states[stop])) < 1024
    assert known[-1] > 3
    assert sum(end["cursor"].get("bad", [])) <= known[-1]
    assert any(any(state["cursor"]["bad"]) for state in states)


@pytest.mark.each_value
@pytest.mark.parametrize("settings", [{}, {"steps": 5}, {"drop_last": True}], ids=str)
@pytest.mark.parametrize("name", ["both", "interleave"])
def test_workers_do_not_change_a_batch(name: str, settings: dict[str, Any]) -> None:
    for bad in ("a run over windows", "whole shards"):
        loaders = [make(STREAMS[name](BAD[bad]), 3, num_workers=workers, **settings) for workers in (0, 1, 2)]
        taken = [take(loader, 12) for loader in loaders]
        for (batches, state), loader in zip(taken[1:], loaders[1:], strict=True):
            assert equal(batches, taken[0][0])
            assert state == taken[0][1]
            assert loader.bad_samples == loaders[0].bad_samples
        assert len(loaders[0].bad_samples) >= 3


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_an_epoch_and_take_over_another_runs(name: str, ranks: int) -> None:
    bad = BAD["first and last of shards"]
    wanted = set(ALL) - bad - {value for value in ALL if name == "filter" and value % 5 == 1}
    loader = make(STREAMS[name](bad), 2)
    first, state = take(loader, 3)
    found, left_out = rows(first), found_by(loader)
    for rank in range(ranks):
        loader = make(STREAMS[name](bad), 3, world=lk.World(rank, ranks), stop="each")
        loader.load_state_dict(state)
        found += rows(list(loader))
        left_out += found_by(loader)
    assert Counter(value for value, _ in found) == Counter(wanted)
    assert left_out == Counter(bad)


class Flaky(Read):
    """Some samples fail this many times before they can be read."""

    def __init__(self, bad: set[int], failures: int, error: Exception) -> None:
        super().__init__(set())
        self.left, self.error, self.opened = dict.fromkeys(bad, failures), error, 0

    def __call__(self, shard: str, start: int = 0) -> Iterator[Any]:
        self.opened += 1
        for value in super().__call__(shard, start):
            drawn = add_draws(value)
            if self.left.get(value, 0):
                self.left[value] -= 1
                raise self.error
            yield drawn


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("skips", [True, False])
def test_reads_that_succeed_when_tried_again_change_nothing(
    skips: bool, workers: int, shuffle: bool, policy: Any, caplog: pytest.LogCaptureFixture
) -> None:

    def loader(read: Any) -> lk.Loader:
        stream = lk.StreamDataset(NAMES, read if skips else lk.from_start(read), lanes=3, window=5, shuffle=shuffle)
        return make(stream, 4, lk.BadSamples(policy, retry=FAST), num_workers=workers)

    clean = list(loader(Flaky(set(), 0, OSError())))
    assert sum(len(batch[0]) for batch in clean) == len(ALL)
    read = Flaky({0, 7, 2013, 5003}, 2, ConnectionResetError("by peer"))
    flaky = loader(read)
    with caplog.at_level(logging.INFO, "loaderkit"):
        assert equal(list(flaky), clean)
    assert not flaky.bad_samples
    if not workers:
        assert read.opened == len(NAMES) + 2 * 4
        said = [
            record.getMessage() for record in caplog.records if "read at attempt 3, after Conn" in record.getMessage()
        ]
        assert len(said) == 4
        assert any(message.startswith("sample 7 of shard '0:9'") for message in said)


def test_reads_that_keep_failing_raise_or_are_left_out() -> None:
    stream = lk.StreamDataset(NAMES, Flaky({2003}, 3, TransientError("gone")), lanes=1)
    with pytest.raises(TransientError) as caught:
        list(make(stream, 4, lk.BadSamples(retry=FAST)))
    assert "tried 3 times" in caught.value.__notes__[0]
    assert "reading sample 3 of shard '2:14'" in caught.value.__notes__[1]
    stream = lk.StreamDataset(NAMES, Flaky({2003}, 9, TransientError("gone")), lanes=1)
    loader = make(stream, 4)
    assert sum(len(batch[0]) for batch in loader) == len(ALL) - 1
    assert loader.bad_samples == [lk.BadSample(0, None, 3, "loaderkit.system.retry.TransientError: gone", shard="2:14")]


def test_a_reader_that_cannot_skip_cannot_go_on_after_a_bad_sample() -> None:
    read = lk.from_start(Read({2003}))
    stream = lk.StreamDataset(["0:9", "2:14"], read, lanes=1)
    taken: list[Any] = []
    with pytest.raises(
        lk.BadSamplesError, match=r"sample 3 of shard '2:14' can't be read \(ValueError: cannot decode 2003"
    ):
        taken.extend(make(stream, 4, collate_fn=torch.tensor))
    assert len(taken) == 2  # the batch that it belongs in is not
    # What its transform can't take is left out.
    stream = lk.StreamDataset(["0:9", "2:14"], lk.from_start(Read(set())), lanes=1, transform=BreakAt({2003}))
    assert len(rows(list(make(stream)))) == 22


def test_a_shard_that_is_gone_is_an_error() -> None:
    def read(shard: str, start: int) -> Iterator[int]:
        if shard == "gone":
            raise FileNotFoundError(shard)
        return iter(range(start, 10))

    loader = make(lk.StreamDataset(["here", "gone"], read, lanes=1), 4, collate_fn=torch.tensor)
    with pytest.raises(
        lk.BadSamplesError, match=r"32 samples in a row can't be read, the last is sample 31 of shard 'gone'"
    ):
        list(loader)


def test_data_that_is_all_bad_is_an_error() -> None:
    def broken(_: int) -> int:
        raise ValueError("no")

    stream = lk.StreamDataset(["a"], lambda _, start: iter(range(start, 5000)), lanes=1, transform=broken)
    with pytest.raises(lk.BadSamplesError, match="1,000 samples in a row are bad, the last is sample 999 of shard 'a'"):
        list(make(stream))
    loader = make(stream_of(set(), set(ALL)))
    assert list(loader) == []
    assert found_by(loader) == Counter(ALL)
    with pytest.raises(RuntimeError, match="found no samples"):
        list(make(stream_of(set(), set(ALL)), steps=3))
    with pytest.raises(lk.BadSamplesError, match=f"{len(ALL)} bad samples in epoch 0, wanted at most max_count=5"):
        list(make(stream_of(set(), set(ALL)), 4, lk.BadSamples("skip", max_count=5, max_rate=1)))


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_bad_samples_are_an_error_at_the_same_batch(workers: int) -> None:
    """With any workers, after any number of resumes. The batch that fails is not counted."""
    stream = stream_of(set(), BAD["every second"])
    policy = lk.BadSamples("skip", max_count=9, max_rate=1)

    def until_too_many(loader: lk.Loader) -> tuple[str, int]:
        batches: list[Any] = []
        with pytest.raises(lk.BadSamplesError, match="bad samples in epoch 0, wanted at most max_count=9") as caught:
            batches.extend(loader)
        return str(caught.value).split("The first")[0], len(batches)

    first = make(stream, 2, policy)
    whole, batches = until_too_many(first)
    assert batches > 2
    assert first.cursor.batches == batches
    for stop in range(batches) if not workers else (0, batches - 1):
        begun = make(stream, 2, policy)
        state = take(begun, stop)[1] if stop else begun.state_dict()
        resumed = make(stream, 2, policy, num_workers=workers)
        resumed.load_state_dict(state)
        again, rest = until_too_many(resumed)
        assert (stop + rest, again) == (batches, whole)
    more = make(stream, 2)
    more.load_state_dict(first.state_dict())
    assert len(rows([*itertools.islice(make(stream, 2), batches), *more])) == len(set(ALL) - BAD["every second"])


def test_a_rate_is_judged_by_what_was_read() -> None:
    def every_tenth(value: int) -> int:
        if value % 10 == 9:
            raise ValueError(value)
        return value

    stream = lk.StreamDataset(["a"], lambda _, start: iter(range(start, 3000)), lanes=1, transform=every_tenth)
    settings: dict[str, Any] = {"collate_fn": torch.tensor}
    taken: list[Any] = []
    with pytest.raises(lk.BadSamplesError, match=r"51 bad samples in epoch 0, wanted at most max_rate=0.05 of 1,000"):
        taken.extend(make(stream, 10, lk.BadSamples("skip"), **settings))
    assert len(taken) == 45  # 50 of the first 500 samples, in 45 batches
    assert len(list(make(stream, 10, lk.BadSamples("skip", max_rate=0.11), **settings))) == 270


def test_they_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "loaderkit"):
        list(make(stream_of({2004}, shuffle=False)))
    assert [record.getMessage() for record in caplog.records] == [
        "sample 4 of shard '2:14' (epoch 0) skipped: ValueError: cannot decode 2004"
    ]


def test_states_of_ranks_that_do_not_meet_hold_each_ones_count_and_merge() -> None:
    """With the same ranks each goes on with its own; with others each takes its part, rounded up."""
    bad = BAD["every second"]

    def at_rank(rank: int, ranks: int = 2, **settings: Any) -> lk.Loader:
        return make(stream_of(bad), 1, world=lk.World(rank, ranks), stop="each", **settings)

    loaders = [at_rank(rank) for rank in range(2)]
    assert [len(list(itertools.islice(loader, 3))) for loader in loaders] == [3, 3]
    states = [loader.state_dict() for loader in loaders]
    counts = [len(loader.bad_samples) for loader in loaders]
    assert 0 < sum(counts) != 2 * counts[0]
    whole = lk.merge_states(states)
    assert whole["cursor"]["bad"] == counts
    for ranks in (1, 2, 3):
        for rank in range(ranks):
            resumed = at_rank(rank, ranks)
            resumed.load_state_dict(whole)
            held = resumed.state_dict()["cursor"].get("bad", [0] * ranks)[rank]
            assert held == (counts[rank] if ranks == 2 else -(-sum(counts) // ranks))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, torch.OutOfMemoryError, ImportError])
def test_what_is_no_samples_fault_is_raised(error: Any) -> None:
    def stop(value: int) -> int:
        if value == 2:
            raise error
        return value

    stream = lk.StreamDataset(["0:9"], Read(set()), transform=stop, lanes=1)
    with pytest.raises(error):
        list(make(stream, collate_fn=torch.tensor))


def test_what_streams_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="'replace' is for data with an index: a stream has no other samples"):
        make(stream_of(set()), policy=lk.BadSamples("replace"))

    class Plain(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(ValueError, match="'skip', and Plain cannot be read past a sample that failed"):
        make(Plain())
