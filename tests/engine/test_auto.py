"""engine="auto" makes batches where that costs less, says why, and changes no batch."""

import json
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice, repeat
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from drawing import Drawing, drawing_collate, equal

import loaderkit as lk
from loaderkit.datasets.memory.array import in_memory
from loaderkit.engine.auto import AutoEngine, choose
from loaderkit.engine.batch_reader import BatchReader
from loaderkit.engine.inline import InlineEngine
from loaderkit.sampling.plan import BatchKey

pytestmark = [
    pytest.mark.filterwarnings("ignore:Loader. . workers for"),  # small data leaves some idle
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
]


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Decide after so many batches, whatever they cost."""

    def set_up(after: int, choice: str) -> None:
        monkeypatch.setattr("loaderkit.engine.auto.MEASURED", after)
        monkeypatch.setattr("loaderkit.engine.auto.WARM_UP", 0)
        monkeypatch.setattr("loaderkit.engine.auto._PATIENCE_S", 0)
        monkeypatch.setattr("loaderkit.engine.auto.choose", lambda *_: choice)

    return set_up


def make_loader(workers: int, **settings: Any) -> lk.Loader:
    return lk.Loader(Drawing(13), 2, shuffle=True, seed=4, collate_fn=drawing_collate, num_workers=workers, **settings)


def children() -> set[Any]:
    return set(multiprocessing.active_children())


@pytest.mark.parametrize("engine", ["ring", "torch"])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_change_at_any_batch_changes_no_batch(
    engine: str, persistent: bool, decide: Callable[[int, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From workers to here, at each batch of two epochs; elsewhere than on Linux the workers are torch's."""
    before = children()
    alone = [list(seeked(make_loader(0), epoch)) for epoch in range(3)]
    assert [len(epoch) for epoch in alone] == [7, 7, 7]
    if engine == "torch":
        monkeypatch.setattr("loaderkit.loader.engines._has_ring", lambda: False)
    for after in range(1, 15) if engine == "ring" else (1, 5, 9):
        decide(after, "here")
        loader = make_loader(1 + after % 3, persistent_workers=persistent)
        assert loader.describe().engine == engine
        assert equal([list(loader) for _ in range(3)], alone)
        found = loader.describe()
        assert (found.engine, found.num_workers) == ("inline", 0)
        assert children() == before  # let go, though they may be persistent


def seeked(loader: lk.Loader, epoch: int) -> lk.Loader:
    loader.seek(epoch=epoch)
    return loader


def test_a_resume_may_change_elsewhere(decide: Callable[[int, str], None]) -> None:
    whole = list(make_loader(0))
    for stop in range(1, 7):
        decide(3, "here")
        first = make_loader(2)
        found = list(islice(first, stop))
        state = json.loads(json.dumps(first.state_dict()))
        decide(2, "here")
        rest = make_loader(1)
        rest.load_state_dict(state)
        assert equal(found + list(rest), whole)


@pytest.mark.parametrize("choice", ["here", "workers"])
def test_data_in_memory_is_read_here_until_it_is_decided(choice: str, decide: Callable[[int, str], None]) -> None:
    columns = {"x": torch.arange(26).view(13, 2), "y": np.arange(13)}
    alone = [list(seeked(lk.Loader(lk.ArrayDataset(columns), 2, shuffle=True), epoch)) for epoch in (0, 1)]
    assert [len(epoch) for epoch in alone] == [7, 7]
    before = children()
    for after in range(1, 10):
        decide(after, choice)
        loader = lk.Loader(lk.ArrayDataset(columns), 2, shuffle=True, num_workers=2)
        epochs = []
        for _ in range(2):
            batches = iter(loader)
            epochs.append(list(islice(batches, after if not epochs else 0)))
            if not epochs[1:]:
                assert children() == before
            epochs[-1] += batches
        assert equal(epochs, alone)
        assert loader.describe().engine == ("inline" if choice == "here" else "ring")


class Pids:
    """Samples that say who read them, in next to no time or not."""

    draws_nothing = True

    def __init__(self, sleep_s: float = 0) -> None:
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[int]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return [os.getpid() for _ in indices]


def readers(loader: lk.Loader) -> list[int]:
    return [int(batch[0]) for batch in loader]


def test_cheap_batches_are_made_here_and_workers_are_let_go() -> None:
    before = children()
    loader = lk.Loader(Pids(), num_workers=2, persistent_workers=True)
    assert loader.describe().engine == "ring"
    found = readers(loader)
    assert len(found) == 400
    assert os.getpid() not in found[:16]  # never before there are workers, which would share what it opens
    assert found[-1] == os.getpid()
    assert children() == before
    about = loader.describe()
    assert about.engine == "inline"
    assert about.making_us is not None
    assert about.receiving_us is not None
    assert choose("workers", about.making_us, about.receiving_us) == "here"
    assert f"making a batch takes {about.making_us:,.0f} us" in about.why
    assert set(readers(loader)) == {os.getpid()}  # also in later epochs


def test_slow_batches_stay_with_workers() -> None:
    loader = lk.Loader(Pids(0.003), num_workers=2)
    assert os.getpid() not in readers(loader)
    about = loader.describe()
    assert about.engine == "ring"
    assert about.making_us is not None
    assert about.making_us > 3000
    assert readers(loader)[:1] != [os.getpid()]


class Sometimes(Pids):
    """Each eighth read takes long, as where a shard is opened."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.sleep_s = 0.02 if indices[0] % 8 == 0 else 0
        return super().__getitems__(indices)


def test_a_slow_read_in_eight_is_not_cheap() -> None:
    loader = lk.Loader(Sometimes(), num_workers=2)
    assert os.getpid() not in list(islice(readers(loader), 100))
    assert loader.describe().engine == "ring"


class Asking(Pids):
    def __getitems__(self, indices: list[int]) -> list[int]:
        info = torch_data.get_worker_info()
        return [info.num_workers if info else -1 for _ in indices]


def nothing(worker: int) -> None:
    """Prepare nothing."""


@pytest.mark.parametrize(
    ("dataset", "settings", "why"),
    [
        (Pids(), {"worker_init_fn": nothing}, "worker_init_fn"),
        (Pids(), {"timeout": 60}, "timeout"),
        (lk.ArrayDataset(torch.arange(400)), {"timeout": 60}, "timeout"),
        (Asking(), {}, "asks get_worker_info"),
    ],
)
def test_what_only_workers_can_keep_stays_with_them(dataset: Any, settings: dict[str, Any], why: str) -> None:
    loader = lk.Loader(dataset, num_workers=2, **settings)
    found = readers(loader)
    assert len(found) == 400
    assert not {os.getpid(), -1} & set(found)
    assert loader.describe().engine == "ring"
    assert why in loader.describe().why


def test_it_is_decided_by_the_ratio_and_between_the_limits_nothing_changes() -> None:
    for receiving in (1e-5, 1e-3):
        assert choose("workers", 0.5 * receiving, receiving) == "here"
        assert choose("here", 10 * receiving, receiving) == "workers"
        assert choose("workers", 1.45 * receiving, receiving) == "here"
        assert choose("here", 2.05 * receiving, receiving) == "workers"
        for ratio in (1.55, 1.75, 1.95):
            assert choose("workers", ratio * receiving, receiving) == "workers"
            assert choose("here", ratio * receiving, receiving) == "here"


class Sleeper(InlineEngine):
    """Takes so long for each batch."""

    def __init__(self, times_s: Iterable[float]) -> None:
        super().__init__(BatchReader(lk.ArrayDataset(np.zeros(1)), None, 0))
        self._times_s = iter(times_s)

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        for key in keys:
            time.sleep(next(self._times_s))
            yield key


@pytest.mark.parametrize(
    ("times_s", "choice"),
    [
        (repeat(0.004), "workers"),
        ((0.008 * 0.95**number for number in count()), "here"),  # as memory that is touched for the first time
        ((0.004 + 0.008 * 0.95**number for number in count()), "workers"),
    ],
)
def test_workers_are_started_only_for_what_stays_slow(
    times_s: Iterable[float], choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaderkit.engine.auto._PATIENCE_S", 0.3)
    keys: list[Any] = list(range(100))
    engine = AutoEngine(
        BatchReader(lk.ArrayDataset(np.zeros(1)), None, 0),
        here=Sleeper(times_s),
        workers=Sleeper(repeat(0.0)),
        handing_over_s=lambda *_: 0.001,
    )
    batches = engine.run(keys)
    found = list(islice(batches, 17))
    assert engine.choice is None
    for batch in batches:
        found.append(batch)
        if engine.choice is not None:
            break
    assert engine.choice == choice
    assert found == keys[: len(found)]


class Handing:
    """Workers that say what each batch took them, and let one wait for it."""

    num_workers = 2

    def __init__(self, making_s: Callable[[int], float], waiting_s: float) -> None:
        self._making_s, self._waiting_s = making_s, waiting_s
        self.closed = False

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        for number, key in enumerate(keys):
            time.sleep(self._waiting_s)
            yield key, self._making_s(number), False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("making_s", "waiting_s", "choice", "latest"),
    [
        (lambda _: 1e-4, 2e-4, "here", 100),  # half of what they take is not for making batches
        (lambda number: 1e-4 if number < 100 else 1e-7, 0, "here", 600),  # as files that are mapped
        (lambda _: 1e-3, 2e-3, "workers", 0),  # the machine may be busy
        (lambda _: 1e-3, 0, "workers", 0),
    ],
)
def test_it_is_decided_again_while_workers_are_in_use(
    making_s: Callable[[int], float], waiting_s: float, choice: str, latest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loaderkit.engine.auto._AGAIN", 512)
    workers, keys = Handing(making_s, waiting_s), list(range(700))
    engine = AutoEngine(
        BatchReader(Pids(), None, 0),
        here=Sleeper(repeat(0.0)),
        workers=workers,
        handing_over_s=lambda *_: 0.0,
    )
    found = []
    for batch in engine.run(keys):  # type: ignore[arg-type]
        found.append(batch)
        if len(found) == 50:
            assert engine.choice == "workers"
        if engine.choice == "here" and choice == "here":
            assert len(found) <= latest
            latest = 700
    assert found == keys
    assert engine.choice == choice
    assert workers.closed == (choice == "here")
    assert engine.making_us is not None


def test_what_is_in_memory(tmp_path: Any) -> None:
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
        assert in_memory(dataset)
    for dataset in (
        lk.ArrayDataset((array, mapped)),
        lk.ArrayDataset(np.asarray(mapped)[1:]),  # still the file's
        lk.ArrayDataset(array, transform=abs),
        lk.ArrayDataset(lk.RecordDataset([1, 2, 3, 4])),
        mapped,
        Pids(),
        torch.zeros(4, device="meta"),
    ):
        assert not in_memory(dataset)


class Broken(Pids):
    def __getitems__(self, indices: list[int]) -> list[int]:
        if indices[0] == 9:
            raise LookupError("no such thing")
        return super().__getitems__(indices)


class Ends(Pids):
    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise StopIteration
        return index

    draws_nothing = False


@pytest.mark.parametrize("after", [3, 100])
def test_an_error_is_the_same_wherever_it_comes(after: int, decide: Callable[[int, str], None]) -> None:
    decide(after, "here")
    before = children()
    for _ in range(2):
        with pytest.raises(LookupError, match="no such thing"):
            readers(lk.Loader(Broken(), num_workers=1, prefetch_factor=1))
    assert children() == before


def test_before_the_first_batch_nothing_is_measured() -> None:
    loader = lk.Loader(Pids(), 4, num_workers=2, prefetch_factor=3, multiprocessing_context="spawn", device="cpu")
    about = loader.describe()
    assert pickle.loads(pickle.dumps(about)) == about
    assert (about.engine, about.making_us, about.receiving_us) == ("ring", None, None)
    assert str(about).splitlines() == [
        "engine: ring (not measured yet: 0 of 16 batches)",
        "workers: 2 (num_workers), started by spawn, up to 6 batches ahead, dealt to whoever is free",
        "pinned: no (the device is cpu)",
        "device: cpu",
    ]


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({}, ["engine: inline (no workers)", "workers: 0 (batches are made in this process)"]),
        (
            {"engine": "torch", "num_workers": 1},
            ["engine: torch (engine='torch')", "workers: 1 (num_workers), started by", "ahead, dealt in turn"],
        ),
        (
            {"engine": "ring", "num_workers": 1},
            ["engine: ring (engine='ring')", "workers: 1 (num_workers), started by"],
        ),
        ({"pin_memory": False}, ["pinned: no (pin_memory=False)"]),
        ({"num_workers": "auto"}, ["(auto: ", " on this host)"]),
    ],
)
def test_the_description_says_what_was_asked_for(settings: dict[str, Any], lines: list[str]) -> None:
    text = str(lk.Loader(Pids(), **settings).describe())
    for line in lines:
        assert line in text


@pytest.mark.parametrize("workers", [0, 2])
def test_a_streams_workers_are_torchdatas(workers: int) -> None:
    stream = lk.StreamDataset(["a", "b"], read=read_numbers)
    about = lk.Loader(stream, 2, num_workers=workers).describe()
    assert about.engine == ("torchdata" if workers else "inline")
    assert about.num_workers == workers


def read_numbers(shard: str, start: int) -> Any:
    return iter(range(start, 10))
