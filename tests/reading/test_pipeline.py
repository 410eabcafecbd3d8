"""Pipelines: each verb keeps length, random access, fingerprint and every guarantee of a Loader."""

import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing import add_draws, drawing_collate, draws, equal

import loaderkit as lk
from loaderkit.datasets.places import place_of

N = 53


def is_kept(value: int) -> bool:
    return value % 3 != 1


def double(value: int) -> int:
    return 2 * value


def with_draws(batch: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(batch), draws()


KEPT = [value for value in range(N) if is_kept(value)]
SHUFFLED = [KEPT[row] for row in lk.Shuffled(len(KEPT), seed=3).indices(0, 0, len(KEPT))]
PIPELINES: dict[str, tuple[Callable[[Any], lk.Pipeline], list[int]]] = {
    "map": (lambda data: lk.Pipeline(data).map(double), [2 * value for value in range(N)]),
    "filter": (lambda data: lk.Pipeline(data).filter(is_kept), KEPT),
    "take": (lambda data: lk.Pipeline(data).take(17), list(range(17))),
    "skip": (lambda data: lk.Pipeline(data).skip(17), list(range(17, N))),
    "shuffle": (lambda data: lk.Pipeline(data).filter(is_kept).shuffle(3), SHUFFLED),
    "all": (
        lambda data: lk.Pipeline(data).filter(is_kept).shuffle(3).skip(4).take(20).map(double),
        [2 * value for value in SHUFFLED[4:24]],
    ),
}
each = pytest.mark.parametrize(("make", "wanted"), PIPELINES.values(), ids=PIPELINES)
SOURCES: dict[str, Any] = {"list": list(range(N)), "records": lk.RecordDataset(range(N))}


@each
@pytest.mark.parametrize("source", SOURCES)
def test_samples_by_index_one_or_many(make: Any, wanted: list[int], source: str) -> None:
    pipeline = make(SOURCES[source])
    assert len(pipeline) == len(wanted) > 10
    assert list(pipeline) == wanted
    assert [pipeline[-1], pipeline[-len(wanted)]] == [wanted[-1], wanted[0]]
    rows = np.random.default_rng(0).permutation(len(wanted))
    assert pipeline.__getitems__(rows.tolist()) == [wanted[row] for row in rows]
    for outside in (len(wanted), -len(wanted) - 1):
        with pytest.raises(IndexError, match=f"index {outside} in a dataset of"):
            pipeline[outside]


@each
def test_a_loader_keeps_its_guarantees(make: Any, wanted: list[int]) -> None:
    """With random transforms: each sample once over ranks, the same with workers, exact after any stop."""

    def loader(batch_size: int = 4, **options: Any) -> lk.Loader:
        options = {"shuffle": True, "seed": 4, "collate_fn": drawing_collate, **options}
        return lk.Loader(make(SOURCES["list"]).map(add_draws), batch_size, **options)

    def ids(batch: Any) -> list[int]:
        found: list[int] = batch[0].tolist()
        return found

    lk.testing.assert_exactly_once(loader, samples=wanted, worlds=(1, 3), ids=ids)
    lk.testing.assert_resumable(loader, epochs=1, stops=(0, 1, 3), consumers=("loop",), ids=ids)
    lk.testing.assert_elastic(
        loader, [{"world_size": 2}, {"world_size": 3, "batch_size": 3}], samples=wanted, stops=(1,), ids=ids
    )
    assert equal(list(loader()), list(loader(num_workers=2)))


@each
def test_pipelines_pickle_and_their_fingerprints_differ(make: Any, wanted: list[int]) -> None:
    pipeline = make(SOURCES["records"])
    assert list(pickle.loads(pickle.dumps(pipeline))) == wanted
    others = [other(SOURCES["records"]).fingerprint() for other, _ in PIPELINES.values() if other is not make]
    assert pipeline.fingerprint() not in others


def test_a_drawing_has_a_line_for_each_verb() -> None:
    pipeline = PIPELINES["all"][0](SOURCES["records"])
    assert repr(pipeline).splitlines() == [
        "RecordDataset: 53",
        "  .filter(is_kept): 35",
        "  .shuffle(3): 35",
        "  .skip(4): 31",
        "  .take(20): 20",
        "  .map(double): 20",
    ]
    mixed = lk.Pipeline.mix([range(6), "ab"], [3, 1], window=4).map(functools.partial(print, end=""))
    assert repr(mixed) == "mix(range: 6, str: 2; 3, 1): 8\n  .map(partial(print, end='')): 8"


def test_what_a_dataset_can_do_is_kept(tmp_path: Path) -> None:
    """Whole batches, lengths, and the place of a sample."""
    array = lk.Pipeline(lk.ArrayDataset(torch.arange(30) * 10)).skip(5).shuffle(1)
    rows = np.array([3, 0, 7])
    assert array.read_batch(rows).tolist() == [int(array[int(row)]) for row in rows]
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n{"x": 2}\n{"x": 3}\n')
    lines = lk.Pipeline(lk.JsonlDataset(str(path))).skip(1)
    assert place_of(lines, 1) == place_of(lk.JsonlDataset(str(path)), 2)
    assert not hasattr(lines, "lengths")
    assert not hasattr(lk.Pipeline(lk.ArrayDataset(torch.arange(3))).map(double), "read_batch")


def test_nothing_is_written_out_for_a_huge_dataset() -> None:
    huge = lk.Pipeline(range(10**12)).skip(10).shuffle(5).take(10**11)
    assert len(huge) == 10**11
    assert len({huge[index] for index in (0, 1, 10**11 - 1)}) == 3
    assert len(pickle.dumps(huge)) < 3_000


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("data", [list(range(11)), lk.RecordDataset(range(11))])
def test_batches_are_consecutive_samples(data: Any, drop_last: bool) -> None:
    pairs = lk.Pipeline(data).batch(2, drop_last=drop_last).map(lambda batch: batch + 1)
    assert len(pairs) == (5 if drop_last else 6)
    found = [batch.tolist() for batch in lk.Loader(pairs, batch_size=None)]
    assert found == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11]][: len(pairs)]


def test_batches_draw_for_themselves() -> None:
    """The same for any workers, and in read-ahead batches of batches."""
    batches = lk.Pipeline(range(24)).map(lambda value: (value, lk.sample_rng().random())).batch(3)
    one = list(lk.Loader(batches, None, shuffle=True))
    two = list(lk.Loader(batches, None, shuffle=True, num_workers=2))
    assert equal(one, two)
    assert len({float(value) for batch in one for value in batch[1]}) == 24


def test_pieces_in_a_batch_draw_for_the_batch() -> None:
    """Whichever batch of the Loader it is in."""
    documents = lk.Pipeline(range(12)).map(lambda value: lk.sample_rng().random(4))
    batches = lk.Pipeline(lk.PieceDataset(documents, 2, lengths=[4] * 12)).batch(3)
    one, two = (
        [batch for each in lk.Loader(batches, size, shuffle=True, collate_fn=list) for batch in each] for size in (1, 4)
    )
    assert len(one) == 8
    assert equal(one, two)


def test_a_mixture_has_its_shares_and_starts_sources_again() -> None:
    sources = [range(300), range(1000, 1100), range(2000, 2010)]
    mixed = lk.Pipeline.mix(sources, [3, 1, 1], size=500, window=50)
    found = np.array(list(mixed)) // 1000
    assert len(mixed) == 500
    for start in range(0, 500, 50):
        assert np.bincount(found[start : start + 50]).tolist() == [30, 10, 10]
    assert [value for value in mixed if value >= 2000] == list(range(2000, 2010)) * 10
    assert [value for value in mixed if value < 1000] == list(range(300))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("random", [False, True])
def test_a_stream_gives_each_sample_once_and_resumes(shuffle: bool, random: bool) -> None:
    data = lk.Pipeline(lk.RecordDataset(range(N))).map(add_draws if random else drawn_nothing)

    def loader() -> lk.Loader:
        stream = data.stream(lanes=3, window=7, shuffle=shuffle)
        return lk.Loader(stream, 4, world=lk.World(), collate_fn=list)

    whole = list(loader())
    assert sorted(value for batch in whole for value, _ in batch) == list(range(N))
    iterator = iter(first := loader())
    for stop in range(1, len(whole), 3):
        while first.cursor.batches < stop:
            next(iterator)
        then = loader()
        then.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert equal(list(then), whole[stop:])


class DrawsNothing:
    """A function that says that it draws nothing."""

    draws_nothing = True

    def __call__(self, value: int) -> tuple[int, int]:
        if value == 20:
            raise KeyError(value)
        return value, 0


def drawn_nothing(value: int) -> tuple[int, int]:
    return value, 0


def test_a_stream_leaves_out_only_the_sample_that_fails() -> None:
    """Although it reads many by one call."""
    stream = lk.Pipeline(lk.RecordDataset(range(N))).map(DrawsNothing()).stream(lanes=1)
    policy = lk.BadSamples("skip", max_rate=1)
    loader = lk.Loader(stream, 4, world=lk.World(), collate_fn=list, bad_samples=policy)
    assert sorted(value for batch in loader for value, _ in batch) == [value for value in range(N) if value != 20]
    assert len(loader.bad_samples) == 1


def test_a_stream_is_of_its_data() -> None:
    loader = lk.Loader(lk.Pipeline(lk.RecordDataset(range(N))).stream(lanes=1))
    next(iter(loader))
    other = lk.Loader(lk.Pipeline(lk.RecordDataset(range(1, N + 1))).stream(lanes=1))
    with pytest.raises(lk.StateError, match="the state is for shards"):
        other.load_state_dict(loader.state_dict())


class Noted:
    """Counts how often samples are read."""

    def __init__(self, size: int = 500) -> None:
        self.size, self.reads = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        if index >= self.size:
            raise IndexError(index)
        return index * 7 % self.size

    def fingerprint(self) -> str:
        return f"noted {self.size}"


def values_of(data: Noted) -> list[int]:
    return [data[index] for index in range(len(data))]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_filter_is_computed_once_and_kept(tmp_path: Path, workers: int) -> None:
    wanted = [value for value in values_of(Noted()) if is_kept(value)]
    cache = str(tmp_path / "kept.npz")
    assert list(lk.Pipeline(Noted()).filter(is_kept, cache=cache, num_workers=workers)) == wanted
    again = lk.Pipeline(data := Noted()).filter(is_kept, cache=cache)
    assert data.reads == 16  # those that are compared
    assert list(again) == wanted
    assert [path.name for path in tmp_path.iterdir()] == ["kept.npz"]


def longer(value: int, least: int) -> bool:
    return value >= least


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": Noted(499)}, "samples is 499, was 500"),
        ({"predicate": double}, "predicate is test_pipeline.double, .*, was test_pipeline.is_kept"),
        ({"predicate": functools.partial(longer, least=9)}, r"predicate is test_pipeline.partial\(longer, least=9\)"),
        ({"predicate": lambda value: value % 3 != 1}, "predicate is test_pipeline.<lambda>"),
    ],
)
def test_a_filter_of_other_data_or_another_predicate_is_not_used(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    cache = str(tmp_path / "kept.npz")
    lk.Pipeline(Noted()).filter(is_kept, cache=cache)
    data, predicate = change.get("data", Noted()), change.get("predicate", is_kept)
    with pytest.warns(UserWarning, match=rf"kept verdicts of other data: {message}"):
        found = lk.Pipeline(data).filter(predicate, cache=cache)
    assert list(found) == [value for value in values_of(data) if predicate(value)]


def test_lambdas_with_other_code_have_other_names(tmp_path: Path) -> None:
    cache = str(tmp_path / "kept.npz")
    lk.Pipeline(Noted()).filter(lambda value: value % 3 != 1, cache=cache)
    with pytest.warns(UserWarning, match="kept verdicts of other data"):
        lk.Pipeline(Noted()).filter(lambda value: value % 3 != 2, cache=cache)


FILTERING = """
import sys, time
import loaderkit as lk

def slow(value):
    time.sleep(0.02)
    return value % 3 != 1

print("filtering", flush=True)
lk.Pipeline(range(500)).filter(slow, cache=sys.argv[1], num_workers=2)
"""


def test_a_filter_that_is_killed_leaves_no_index(tmp_path: Path) -> None:
    script, cache = tmp_path / "job.py", tmp_path / "kept" / "kept.npz"
    script.write_text(FILTERING)
    with subprocess.Popen([sys.executable, script, cache], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "filtering\n"
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGKILL)
    assert not cache.exists()
    lk.Pipeline(range(500)).filter(is_kept, cache=str(cache))
    assert cache.exists()


def test_a_predicate_that_fails_names_its_sample() -> None:
    with pytest.raises(RuntimeError, match=r"filter: fail raised KeyError: 7 \(samples 14\)"):
        lk.Pipeline(range(N)).map(half).filter(fail)


def half(value: int) -> float:
    return value // 2 if value % 2 == 0 else -1


def fail(value: float) -> bool:
    if value == 7:
        raise KeyError(value)
    return True


def test_a_lambda_cannot_be_sent_to_a_spawned_worker() -> None:
    loader = lk.Loader(lk.Pipeline(range(4)).map(lambda value: value), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(Exception, match=r"lambda"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            iter([1]),
            "the dataset is of type list_iterator, wanted a dataset with a length and samples by index.*lk.StreamDataset",
        ),
        (lk.StreamDataset(["a"], lambda shard, start: []), "a StreamDataset has these verbs itself"),
    ],
)
def test_data_without_an_index_is_refused(data: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        lk.Pipeline(data)


@pytest.mark.parametrize(("verb", "count"), [("take", -1), ("skip", True), ("batch", 0), ("take", 1.5)])
def test_counts_that_are_refused(verb: str, count: Any) -> None:
    with pytest.raises(ValueError, match=f"{verb}: found {count}, wanted an integer of at least"):
        getattr(lk.Pipeline(range(4)), verb)(count)
