"""engine="auto" reads rows in memory inline, starts workers for other data, and says why."""

import json
import os
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from drawing import equal
from forwarding import Forwards

import loaderkit as lk

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores


@pytest.fixture(autouse=True)
def _gil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each Python choose as one with a GIL does."""
    monkeypatch.setattr("sys._is_gil_enabled", lambda: True, raising=False)


class Pids:
    """Samples that say which process read them."""

    draws_nothing = True

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def engine_of(dataset: Any, **settings: Any) -> str:
    return lk.Loader(dataset, **{"num_workers": 2} | settings).describe().engine


def test_rows_in_memory_are_read_inline(tmp_path: Path) -> None:
    """A mapped file, a transform, another reader and other devices do not count as rows in memory."""
    array, tensor = np.zeros((4, 2)), torch.zeros(4)
    np.save(tmp_path / "a.npy", array)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for dataset in (
        lk.ArrayDataset((array, tensor, [1, 2, 3, 4])),
        torch_data.TensorDataset(tensor),
        torch_data.Subset(lk.ArrayDataset(array), [1]),
        array[1:],
        tensor,
    ):
        assert engine_of(dataset) == "inline"
    for dataset in (
        lk.ArrayDataset((array, mapped)),
        lk.ArrayDataset(np.asarray(mapped)[1:]),  # still the file's
        lk.ArrayDataset(array, transform=abs),
        lk.ArrayDataset(lk.RecordDataset([1, 2, 3, 4])),
        mapped,
        Pids(),
        torch.zeros(4, device="meta"),
    ):
        assert engine_of(dataset) == "ring"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"worker_init_fn": print}, "worker_init_fn"),
        ({"timeout": 60}, "timeout"),
        ({"collate_fn": torch.stack}, "num_workers=2"),
        ({"engine": "ring"}, "engine='ring'"),
    ],
)
def test_settings_that_need_workers_keep_them(settings: dict[str, Any], why: str) -> None:
    about = lk.Loader(lk.ArrayDataset(torch.arange(40)), num_workers=2, **settings).describe()
    assert (about.engine, about.num_workers) == ("ring", 2)
    assert why in about.why


def test_elsewhere_than_on_linux_the_workers_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_of(Pids()) == "ring"
    monkeypatch.setattr("sys.platform", "darwin")
    assert engine_of(Pids()) == "torch"


@pytest.fixture
def _no_gil(_gil: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False)


def declare(function: Any, **promises: bool) -> Any:
    """Return a copy of a function that makes these promises."""

    def copy(value: Any) -> Any:
        return function(value)

    vars(copy).update(promises)
    return copy


BOTH = {"draws_nothing": True, "thread_safe": True}


class Shared:
    """Samples that threads may read."""

    draws_nothing = thread_safe = True

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index


class Changed(Shared):
    """Promises nothing for a method of its own."""

    def __getitem__(self, index: int) -> int:
        return -index


@pytest.mark.usefixtures("_no_gil")
@pytest.mark.parametrize(
    ("dataset", "settings", "engine"),
    [
        (Shared(), {}, "threads"),
        (lk.RecordDataset([1, 2, 3]), {}, "threads"),
        (lk.MapDataset(lk.RecordDataset([1, 2, 3]), declare(abs, **BOTH)), {}, "threads"),
        (lk.ConcatDataset([Shared(), Shared()]), {"collate_fn": lk.PadCollate()}, "threads"),
        (Shared(), {"collate_fn": declare(list, **BOTH)}, "threads"),
        (Shared(), {"collate_fn": lk.PackCollate(fields={"x": declare(list, **BOTH)})}, "threads"),
        (lk.ArrayDataset([1, 2]), {"collate_fn": lk.MultimodalCollate({"x": lk.Pad(), "y": list})}, "threads"),
        # One part that promises nothing, or one thing only.
        (Pids(), {}, "ring"),
        (Changed(), {}, "ring"),
        (Forwards(Shared()), {}, "ring"),
        (lk.ConcatDataset([Shared(), Pids()]), {}, "ring"),
        (lk.MapDataset(lk.RecordDataset([1, 2, 3]), declare(abs, draws_nothing=True)), {}, "ring"),
        (lk.MapDataset(lk.RecordDataset([1, 2, 3]), declare(abs, thread_safe=True)), {}, "ring"),
        (Shared(), {"collate_fn": declare(list, draws_nothing=True)}, "ring"),
        (Shared(), {"collate_fn": declare(list, thread_safe=True)}, "ring"),
        (Shared(), {"collate_fn": lk.PackCollate(fields={"x": declare(list, draws_nothing=True)})}, "ring"),
        (Shared(), {"collate_fn": lk.MultimodalCollate({"x": declare(list, draws_nothing=True)})}, "ring"),
        # Settings that are for processes, or name an engine.
        (Shared(), {"multiprocessing_context": "fork"}, "ring"),
        (Shared(), {"worker_init_fn": print}, "ring"),
        (Shared(), {"timeout": 60}, "ring"),
        (Shared(), {"engine": "torch"}, "torch"),
        (Shared(), {"num_workers": 0}, "inline"),
        (lk.ArrayDataset([1, 2]), {}, "inline"),
    ],
)
def test_without_the_gil_threads_read_what_may_be_shared(dataset: Any, settings: dict[str, Any], engine: str) -> None:
    about = lk.Loader(dataset, **{"num_workers": 2} | settings).describe()
    assert about.engine == engine
    assert about.num_workers == (0 if engine == "inline" else 2)


def test_without_the_gil_batches_and_resume_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**settings: Any) -> lk.Loader:
        return lk.Loader(Shared(), 3, shuffle=True, **settings)

    whole = list(make())
    for free in (True, False):
        monkeypatch.setattr("sys._is_gil_enabled", lambda free=free: not free)
        first, resumed = make(num_workers=2), make(num_workers=3)
        found = list(islice(first, 5))
        assert first.describe().engine == ("threads" if free else "ring")
        monkeypatch.setattr("sys._is_gil_enabled", lambda free=free: free)  # on the other interpreter
        resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
        found += list(resumed)
        assert resumed.describe().engine == ("ring" if free else "threads")
        assert equal(found, whole)


def test_a_gil_that_comes_back_changes_no_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing a library that needs the GIL switches it on."""
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False)
    loader = lk.Loader(Shared(), 4, num_workers=2)
    batches = iter(loader)
    next(batches)
    before = loader.describe()
    monkeypatch.setattr("sys._is_gil_enabled", lambda: True)
    assert loader.describe() == before
    assert len(list(batches)) == 9
    assert "thread_safe" in before.why


def test_inline_reading_changes_no_batch_and_no_resume() -> None:
    columns = {"x": torch.arange(26).view(13, 2), "y": np.arange(13)}

    def make(**settings: Any) -> lk.Loader:
        return lk.Loader(lk.ArrayDataset(columns), 2, shuffle=True, **settings)

    alone = make()
    whole = [*alone, *alone]
    assert len(whole) == 14
    for engine in ("auto", "ring"):
        first, resumed = make(num_workers=2, engine=engine), make(num_workers=1)
        found = list(islice(first, 5))
        resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
        found += [*resumed, *resumed]
        assert equal(found, whole)
        assert first.describe().engine == ("inline" if engine == "auto" else "ring")


def test_other_data_is_read_by_workers_alone() -> None:
    """Files that this process opened would be shared with forked workers."""
    found = torch.cat(list(lk.Loader(Pids(), 4, num_workers=2)))
    assert len(found) == 40
    assert os.getpid() not in found


def test_the_description_says_what_a_loader_does() -> None:
    loader = lk.Loader(Pids(), 4, num_workers=2, prefetch_factor=3, multiprocessing_context="spawn", device="cpu")
    about = loader.describe()
    assert pickle.loads(pickle.dumps(about)) == about
    assert str(about).splitlines() == [
        "engine: ring (num_workers=2)",
        "workers: 2 (num_workers), started by spawn (multiprocessing_context), up to 6 batches ahead, dealt to whoever is free",
        "pinned: no (the device is cpu)",
        "device: cpu",
    ]
    inline = str(lk.Loader(torch.arange(8), num_workers=2).describe()).splitlines()
    assert inline[:2] == [
        "engine: inline (rows in memory without a transform take less time to read here than to receive from workers)",
        "workers: 0 (batches are made in this process)",
    ]


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({}, ["engine: inline (no workers)", "workers: 0 (batches are made in this process)"]),
        (
            {"engine": "torch", "num_workers": 1},
            ["engine: torch (engine='torch')", "workers: 1 (num_workers), started by", "ahead, dealt in turn"],
        ),
        ({"pin_memory": False}, ["pinned: no (pin_memory=False)"]),
        ({"num_workers": "auto"}, ["(auto: ", " on this host)"]),
    ],
)
def test_the_description_says_what_was_asked_for(settings: dict[str, Any], lines: list[str]) -> None:
    text = str(lk.Loader(Pids(), **settings).describe())
    for line in lines:
        assert line in text


def read_numbers(shard: str, start: int) -> Any:
    return iter(range(start, 10))


@pytest.mark.parametrize("engine", ["auto", "torch", "ring"])
def test_a_streams_workers_are_torchs(engine: Any) -> None:
    stream = lk.StreamDataset(["a", "b"], read=read_numbers)
    loader = lk.Loader(stream, 2, num_workers=2, engine=engine, multiprocessing_context="fork")
    assert str(loader.describe()).splitlines()[:2] == [
        "engine: torch (torch's workers read a stream)",
        "workers: 2 (num_workers), started by fork (multiprocessing_context), up to 4 batches ahead, dealt in turn",
    ]
    assert str(lk.Loader(stream, 2).describe()) == str(lk.Loader(Pids(), 2).describe())  # without workers
