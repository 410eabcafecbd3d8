"""The law of damaged states: they end in one of our errors when they are loaded, or in the right samples."""

import itertools
import json
import random
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tier
import torch
import torch.distributed.checkpoint as checkpoint
import torch.utils.data as torch_data
from datamodule_runs import Recorder, fit
from iterables import Numbers, StatefulNumbers
from mutations import flips, mutations, paths_in
from sealed import reseal
from stream_data import Counted, names

import loaderkit as lk

SIZE = 60
LENGTHS = [1 + 7 * number % 13 for number in range(SIZE)]
SHARDS = [7, 0, 12, 5, 3, 9]


class Shards:
    shard_sizes = (20, 10, 30)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return index


def rows(found: Sequence[Any]) -> list[int]:
    return [int(number) for number in itertools.chain(*([each] if isinstance(each, int) else each for each in found))]


def indexed(**settings: Any) -> lk.Loader:
    settings = {"batch_size": 4, "seed": 3, "world": lk.World(), "collate_fn": rows, **settings}
    return lk.Loader(settings.pop("dataset", list(range(SIZE))), **settings)


def stream(**settings: Any) -> lk.StreamDataset:
    settings = {"lanes": 3, "window": 4, "seed": 5, "block": 2, **settings}
    return lk.StreamDataset(names(settings.pop("sizes", SHARDS)), Counted(), **settings)


def streamed(data: Any, **settings: Any) -> lk.Loader:
    return lk.Loader(data, 4, **{"world": lk.World(), "collate_fn": rows, **settings})


def leaving_out() -> lk.Loader:
    loader = indexed(shuffle=True, bad_samples=lk.BadSamples("skip"))
    loader.skip(epoch=0, samples=[range(8, 17), range(30, 33)])
    return loader


def far(number: int) -> int:
    return number + 1_000_000


def mixed(ends: Any) -> lk.Loader:
    return streamed(
        lk.interleave({stream(shuffle=True): 2, stream(sizes=[8, 9, 20]).filter(bool).map(far): 1}, ends=ends)
    )


def rank_of_two(rank: int) -> lk.Loader:
    return streamed(stream(shuffle=True, sizes=[9] * 8), world=lk.World(rank, 2), stop="each")


MAKERS: dict[str, Any] = {
    "sequential": indexed,
    "shuffled": lambda: indexed(shuffle=True),
    "single samples": lambda: indexed(shuffle=True, batch_size=None, collate_fn=lambda sample: [sample]),
    "shards": lambda: indexed(dataset=Shards(), shuffle=True),
    "subset": lambda: indexed(order=lk.Subset(range(5, 50))),
    "weighted": lambda: indexed(order=lk.Weighted(range(SIZE))),
    "mixture": lambda: indexed(order=lk.Mixture([40, 20], [3, 1], window=10)),
    "sampler": lambda: indexed(order=torch_data.RandomSampler(range(SIZE))),
    "batch sampler": lambda: indexed(
        batch_size=1, batch_sampler=torch_data.BatchSampler(torch_data.RandomSampler(range(SIZE)), 4, drop_last=False)
    ),
    "padded": lambda: indexed(tail="pad", batch_size=7),
    "skips bad samples, and steps": leaving_out,
    "rank 1 of 3": lambda: indexed(shuffle=True, world=lk.World(1, 3)),
    "buckets": lambda: indexed(batch_size=1, plan=lk.LengthBuckets(LENGTHS, 4, window=20)),
    "budget": lambda: indexed(batch_size=1, plan=lk.TokenBudget(LENGTHS, 30, window=20)),
    "packed": lambda: indexed(
        batch_size=1,
        plan=lk.PackPlan(LENGTHS, 20, 2, window=20),
        collate_fn=lambda found: rows(itertools.chain(*found)),
    ),
    "stream": lambda: streamed(stream()),
    "shuffled stream": lambda: streamed(stream(shuffle=True)),
    "stream of steps": lambda: streamed(stream(shuffle=True), steps=6),
    "shared shards": lambda: streamed(stream(share=3)),
    "filtered stream": lambda: streamed(stream(shuffle=True).filter(lambda number: number % 2)),
    "batched stream": lambda: streamed(
        stream(shuffle=True).batch(2, collate_fn=list).shuffle(3),
        collate_fn=lambda found: rows(itertools.chain(*found)),
    ),
    "rows of a pipeline": lambda: indexed(
        dataset=lk.Pipeline([[number] * length for number, length in enumerate(LENGTHS)]).pack(20),
        shuffle=True,
        batch_size=2,
        collate_fn=lambda found: rows({int(part[0]) for row in found for part in row}),
    ),
    "chain": lambda: streamed(lk.chain(stream(shuffle=True), stream(sizes=[4, 5]).map(far))),
    "interleaved": lambda: mixed("all"),
    "interleaved, again": lambda: mixed("again"),
    "one of two ranks": lambda: rank_of_two(0),
    "iterable": lambda: streamed(Numbers(SIZE)),
    "iterable with a state": lambda: streamed(StatefulNumbers(SIZE)),
}
REPEATS = {"weighted", "mixture", "padded", "stream of steps", "interleaved, again"}  # a sample may come twice
KINDS = pytest.mark.parametrize("kind", MAKERS)


def stopped(kind: str, batches: int) -> dict[str, Any]:
    """Return the state after some batches."""
    if kind != "one of two ranks":
        return stopped_at(MAKERS[kind](), batches)
    return lk.merge_states([stopped_at(rank_of_two(rank), batches) for rank in range(2)])


def stopped_at(loader: lk.Loader, batches: int) -> dict[str, Any]:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return loader.state_dict()


def as_text(state: Any) -> str:
    return json.dumps(state, sort_keys=True)


def was_loaded(loader: Any, what: str, state: Any) -> bool:
    """Load a state; return whether it was accepted. Check that it was refused by a good error, within a second."""
    began, refused = time.process_time(), ""
    try:
        loader.load_state_dict(state)
    except lk.StateError as error:
        refused = str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error
    assert time.process_time() - began < 1, what
    if refused:
        assert any(word in refused for word in ("found", " is ", "lacks", "has version", "give")), (what, refused)
        assert any(
            word in refused for word in ("wanted", "reads version", "give", "Give", "of other data", "this loader has")
        ), (what, refused)
    return not refused


@KINDS
def test_a_damaged_state_is_refused(kind: str) -> None:
    """It is loaded only if it says the same as before."""
    state, loader = json.loads(json.dumps(stopped(kind, 5))), MAKERS[kind]()
    damage = [*mutations(state, stopped(kind, 3)), *flips(state, 400, seed=len(kind))]
    assert len(damage) > 400
    for what, damaged in damage:
        if was_loaded(loader, what, damaged):
            assert as_text(damaged) == as_text(state), what
    assert was_loaded(loader, "the state itself", state)


@KINDS
def test_a_state_goes_through_a_distributed_checkpoint(kind: str, tmp_path: Path) -> None:
    state, loader = stopped(kind, 5), MAKERS[kind]()
    with warnings.catch_warnings(action="ignore"):  # there is no process group
        checkpoint.save({"loader": state}, checkpoint_id=tmp_path)
        found = {"loader": loader.state_dict()}  # the form that is read into
        checkpoint.load(found, checkpoint_id=tmp_path)
    assert found["loader"] == state
    assert was_loaded(loader, "the state itself", found["loader"])


@KINDS
def test_a_damaged_state_with_a_right_checksum_is_refused_or_gives_no_sample_twice(kind: str) -> None:
    """The checks of the fields alone: whatever passes them is a place in the data."""
    state, draw = json.loads(json.dumps(stopped(kind, 5))), random.Random(1)
    found = [(what, reseal(each)) for what, each in mutations(state, stopped(kind, 3)) if isinstance(each, dict)]
    assert len(found) > 300
    loaders = [MAKERS[kind]()]
    accepted = 0
    for what, damaged in draw.sample(found, min(len(found), 600 if tier.full else 200)):
        if was_loaded(loaders[-1], what, damaged):
            accepted += 1
            read_rest(loaders[-1], kind, what)
            loaders.append(MAKERS[kind]())
    assert accepted > 5


def read_rest(loader: lk.Loader, kind: str, what: str) -> None:
    """Read on from a state: it fails only because the data is not what the state says."""
    began = time.process_time()
    epoch = loader.cursor.epoch
    got: list[int] = []
    failed = "cannot resume"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an epoch without more batches
            for batch in itertools.islice(loader, 40):
                got += batch
                if loader.cursor.epoch != epoch:
                    break
    except ValueError as error:
        failed = str(error)
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error
    assert failed.startswith(("cannot resume", "plan: ")), what
    assert kind in REPEATS or len(set(got)) == len(got), what
    assert time.process_time() - began < 1, what


MODULES: dict[str, Any] = {
    "samples": lambda: list(range(SIZE)),
    "stream": lambda: stream(shuffle=True),
    "both": lambda: {"a": list(range(SIZE)), "b": Shards()},
}


def module(kind: str) -> lk.DataModule:
    data = lk.DataModule(train=MODULES[kind](), loader=lk.LoaderConfig(batch_size=4, world=lk.World(), collate_fn=rows))
    data.setup("fit")
    data.loaders = data.train_dataloader()  # type: ignore[attr-defined]
    return data


@pytest.mark.parametrize("kind", MODULES)
def test_a_damaged_state_of_a_datamodule_is_refused(kind: str) -> None:
    states = []
    for batches in (3, 5):
        data = module(kind)
        for loader in data.loaders.values() if kind == "both" else [data.loaders]:
            stopped_at(loader, batches)
        states.append(json.loads(json.dumps(data.state_dict())))
    other, state = states
    data = module(kind)
    for what, damaged in itertools.chain(mutations(state, other), flips(state, 200, seed=1)):
        if was_loaded(data, what, damaged):
            assert as_text(damaged) == as_text(state), what
        if isinstance(damaged, dict) and was_loaded(data, what, reseal(damaged)):
            # The nested states have checksums of their own.
            assert all(each in (*state["train"], *other["train"]) for each in damaged["train"]), what
    assert was_loaded(data, "the state itself", state)


def test_a_table_s_statistics_are_checked_too() -> None:
    columns = lk.TableColumns(target="y", numeric=["a"], categorical=["c"])
    table = {"a": np.arange(8.0), "c": ["x", "y"] * 4, "y": np.arange(8) % 2}
    data = lk.TableDataModule(train=table, columns=columns)
    data.setup("fit")
    data.train_dataloader()
    state = json.loads(json.dumps(data.state_dict()))
    assert [path for path in paths_in(state["statistics"]) if path[0] == "numeric"]
    for what, damaged in itertools.chain(mutations(state, state), flips(state, 200, seed=1)):
        if was_loaded(data, what, damaged):
            assert as_text(damaged) == as_text(state), what
    for what, damaged in mutations(state["statistics"], state["statistics"]):
        if isinstance(damaged, dict):
            with warnings.catch_warnings(action="ignore"):  # the columns differ from those given
                was_loaded(data, what, state | {"statistics": reseal(damaged)})


@pytest.mark.parametrize("part", ["data", "loader"])
def test_a_damaged_lightning_checkpoint_stops_the_fit_before_it_trains(part: str, tmp_path: Path) -> None:
    def data() -> lk.DataModule:
        return lk.DataModule(train=lk.ArrayDataset(torch.rand(20, 3)), loader=lk.LoaderConfig(batch_size=4))

    fit(tmp_path, Recorder(lambda batch: batch, 3), data(), saving=True)
    path = next(path for path in sorted(tmp_path.rglob("*.ckpt")))
    content = torch.load(path, weights_only=False)
    state = content["DataModule"]
    fields = state if part == "data" else state["train"][0]["cursor"]
    fields["batches"] += 1
    torch.save(content, path)
    model = Recorder(lambda batch: batch, 3)
    with pytest.raises(lk.StateError, match="checksum"):
        fit(tmp_path, model, data(), ckpt=path)
    assert model.seen == []


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_state_says_how_to_go_on(version: int) -> None:
    old = {
        "version": version,
        "cursor": {"epoch": 1, "samples": 20, "batches": 5, "plan": []},
        "identity": {"dataset": "60 samples", "order": "sequential-1", "seed": 3, "block": None},
        "step": 4,
    }
    with pytest.raises(
        lk.StateError, match=rf"version {version}, this loaderkit reads version 3. Install .*loader.seek"
    ):
        indexed().load_state_dict(old)


def test_a_long_row_takes_no_memory_for_its_length() -> None:
    plan = lk.PackPlan([10**9, 3, 5], 10**9 + 5)
    began = time.process_time()
    assert [key.indices.tolist() for key in plan.keys(lk.Cursor())] in ([[0, 2], [1]], [[1], [0, 2]])
    assert time.process_time() - began < 1
