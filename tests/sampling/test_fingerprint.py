"""What tells data apart at a resume: whatever can be told is told, at a cost that does not grow, and old states still load."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from forwarding import Forwards
from sealed import reseal

import loaderkit as lk
from loaderkit.sampling.fingerprint import fingerprint, fingerprint_of

TEN = list(range(10))


class Own:
    """A user's class that says nothing about its data."""

    def __init__(self, first: int = 0, size: int = 10) -> None:
        self.first, self.size = first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return self.first + index


class WithProperty(Own):
    @property
    def fingerprint(self) -> str:
        return f"numbers from {self.first}"


class WithMethod(Own):
    def fingerprint(self) -> str:
        return f"numbers from {self.first}"


class WithAttribute(Own):
    def __init__(self, first: int = 0) -> None:
        super().__init__(first)
        self.fingerprint = f"numbers from {first}"


def rows(seed: int | None, function: bool = False) -> Any:
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_dict({"a": TEN})
    found = found if seed is None else found.shuffle(seed=seed)
    return found.with_transform(Own(first=3).__getitem__) if function else found


def random_half(data: Any, seed: int) -> Any:
    return torch_data.random_split(data, [5, 5], torch.Generator().manual_seed(seed))[0]


def split_half(data: Any, seed: int) -> Any:
    return lk.SubsetDataset(lk.split(data, {"a": 0.7, "b": 0.3}, seed=seed)["a"], range(4))


# Data, and other data of the same length.
KINDS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "list": (lambda: list(TEN), lambda: TEN[::-1]),
    "texts": (lambda: [f"t{n}" for n in TEN], lambda: [f"u{n}" for n in TEN]),
    "pairs": (lambda: [(f"t{n}", np.int64(n)) for n in TEN], lambda: [(f"t{n}", np.int64(n + 1)) for n in TEN]),
    "tuple": (lambda: tuple(TEN), lambda: tuple(TEN[::-1])),
    "range": (lambda: range(10), lambda: range(10, 20)),
    "array": (lambda: np.arange(20).reshape(10, 2), lambda: np.arange(20).reshape(10, 2) + 1),
    "array of another dtype": (lambda: np.zeros(10, np.int32), lambda: np.zeros(10, np.float32)),
    "array of objects": (lambda: np.array([f"t{n}" for n in TEN], object), lambda: np.array(TEN, object)),
    "tensor": (lambda: torch.arange(10), lambda: torch.arange(10).flip(0)),
    "bfloat16": (lambda: torch.zeros(10, 2, dtype=torch.bfloat16), lambda: torch.ones(10, 2, dtype=torch.bfloat16)),
    "TensorDataset": (
        lambda: torch_data.TensorDataset(torch.arange(10), torch.zeros(10)),
        lambda: torch_data.TensorDataset(torch.arange(10), torch.ones(10)),
    ),
    "Subset": (lambda: torch_data.Subset(TEN, range(5)), lambda: torch_data.Subset(TEN, range(5, 10))),
    "Subset by a tensor": (
        lambda: torch_data.Subset(Own(), torch.arange(5)),
        lambda: torch_data.Subset(Own(), torch.arange(5, 10)),
    ),
    "Subset of other data": (
        lambda: torch_data.Subset(range(10), range(5)),
        lambda: torch_data.Subset(range(10, 20), range(5)),
    ),
    "random_split": (lambda: random_half(TEN, 1), lambda: random_half(TEN, 2)),
    "random_split of an own class": (lambda: random_half(Own(), 1), lambda: random_half(Own(), 2)),
    "ConcatDataset": (
        lambda: torch_data.ConcatDataset([TEN, TEN[::-1]]),
        lambda: torch_data.ConcatDataset([TEN[::-1], TEN]),
    ),
    "StackDataset": (
        lambda: torch_data.StackDataset(TEN, TEN[::-1]),
        lambda: torch_data.StackDataset(TEN[::-1], TEN),
    ),
    "StackDataset by name": (
        lambda: torch_data.StackDataset(a=TEN, b=TEN[::-1]),
        lambda: torch_data.StackDataset(a=TEN[::-1], b=TEN),
    ),
    "Hugging Face": (lambda: rows(None), lambda: rows(1)),
    "Hugging Face with a function": (lambda: rows(1, function=True), lambda: rows(2, function=True)),
    "split of a list": (lambda: split_half([(n,) for n in TEN], 1), lambda: split_half([(n,) for n in TEN], 2)),
    "split of an own class": (lambda: split_half(Own(), 1), lambda: split_half(Own(), 2)),
    "method": (lambda: WithMethod(0), lambda: WithMethod(1)),
    "property": (lambda: WithProperty(0), lambda: WithProperty(1)),
    "attribute": (lambda: WithAttribute(0), lambda: WithAttribute(1)),
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda data: data,
    "SubsetDataset": lambda data: lk.SubsetDataset(data, range(len(data))),
    "ConcatDataset": lambda data: lk.ConcatDataset([data, data]),
    "ZipDataset": lambda data: lk.ZipDataset([data]),
    "MapDataset": lambda data: lk.MapDataset(data, str),
    "Pipeline": lambda data: lk.Pipeline(data).shuffle().take(3),
    "batches": lambda data: lk.Pipeline(data).batch(2),
    "CachedDataset": lambda data: lk.CachedDataset(data, max_bytes=1 << 20),
    "torch's Subset": lambda data: torch_data.Subset(data, range(len(data))),
    "torch's ConcatDataset": lambda data: torch_data.ConcatDataset([data]),
}


def state_of(data: Any, samples: int = 1) -> dict[str, Any]:
    loader = lk.Loader(data, 1)
    loader.seek(epoch=0, samples=samples)
    return loader.state_dict()


@pytest.mark.each_value
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_takes_the_same_data_and_refuses_other_data_of_its_length(kind: str, wrapper: str) -> None:
    wrap, (make, other) = WRAPPERS[wrapper], KINDS[kind]
    assert len(make()) == len(other())  # else the length alone would tell
    state = state_of(wrap(make()))
    again = lk.Loader(wrap(make()), 1)
    again.load_state_dict(state)
    assert again.cursor.samples == 1
    with pytest.raises(lk.StateError, match="the state is for dataset"):
        lk.Loader(wrap(other()), 1).load_state_dict(state)


def test_another_process_finds_the_same_fingerprints() -> None:
    """Also with another seed of Python's hashes."""
    code = "from test_fingerprint import KINDS, fingerprint_of; print([fingerprint_of(make()) for make, _ in KINDS.values()])"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "7"},
    )
    assert found.stdout.strip() == str([fingerprint_of(make()) for make, _ in KINDS.values()]), found.stderr


# What a loaderkit wrote that knew only methods.
BEFORE = {
    "list": (lambda: TEN, "10 samples"),
    "tensor": (lambda: torch.arange(10), "10 samples"),
    "Subset": (lambda: torch_data.Subset(TEN, range(5)), "5 samples"),
    "property": (WithProperty, "10 samples"),
    "MapDataset": (lambda: lk.MapDataset(TEN, str), "10 samples (10:)"),
    "SubsetDataset": (lambda: lk.SubsetDataset(TEN, [3, 4, 5]), "3 samples (subset(3 of 10:, 6619d64f14e0c299))"),
    "ConcatDataset": (lambda: lk.ConcatDataset([TEN, TEN]), "20 samples (concat(10:, 10:))"),
    "Pipeline": (lambda: lk.Pipeline(TEN), "10 samples ()"),
    "batches": (lambda: lk.Pipeline(TEN).batch(2), "5 samples (batches of 2 of )"),
    "CachedDataset": (lambda: lk.CachedDataset(TEN, max_bytes=1 << 20), "10 samples"),
    "a forwarded method": (lambda: Forwards(WithMethod()), "10 samples (numbers from 0)"),
}


@pytest.mark.parametrize("kind", BEFORE)
def test_a_state_from_before_still_loads(kind: str) -> None:
    make, text = BEFORE[kind]
    state = state_of(make())
    assert state["identity"]["dataset"] != text
    old = reseal(state, identity=state["identity"] | {"dataset": text})
    loader = lk.Loader(make(), 1)
    loader.load_state_dict(old)
    assert loader.cursor.samples == 1
    other = reseal(state, identity=state["identity"] | {"dataset": text.replace("samples", "others")})
    with pytest.raises(lk.StateError, match="the state is for dataset"):
        lk.Loader(make(), 1).load_state_dict(other)


def test_a_pipelines_stream_tells_data_apart_and_loads_a_state_from_before() -> None:
    def loader_of(data: Any) -> lk.Loader:
        return lk.Loader(lk.Pipeline(data).stream(lanes=1), 2)

    loader = loader_of(TEN)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(lk.StateError, match="the state is for shards"):
        loader_of(TEN[::-1]).load_state_dict(state)
    for shards in (state["stream"]["shards"], "10 shards (af2b63e931c1d9f7)"):
        again = loader_of(TEN)
        again.load_state_dict(reseal(state, stream=state["stream"] | {"shards": shards}))
        assert next(iter(again)).tolist() == [2, 3]


@pytest.mark.parametrize("data", [Own(), lk.MapDataset(Own(), str), torch_data.ConcatDataset([Own(), Own()])])
def test_data_that_nothing_tells_apart_is_said_once_at_a_resume(data: Any) -> None:
    state, loader = state_of(data), lk.Loader(data, 1)
    with pytest.warns(UserWarning, match="only the number of samples tells .*: Own has no fingerprint"):
        loader.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        loader.load_state_dict(state)


@pytest.mark.parametrize("data", [TEN, WithProperty(), WithAttribute(), lk.RecordDataset([{"a": 1}] * 3)])
def test_data_with_a_fingerprint_and_a_state_of_the_start_say_nothing(data: Any) -> None:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("error")
        lk.Loader(data, 1).load_state_dict(state_of(data))
        lk.Loader(Own(), 1).load_state_dict(state_of(Own(), samples=0))
        lk.testing.assert_resumable(lambda: lk.Loader(Own(), 2))


def test_a_forwarded_fingerprint_does_not_speak_for_the_wrapper() -> None:
    assert fingerprint(Forwards(WithMethod()), 10) == "10 samples"


def test_data_that_moved_is_the_same_and_that_of_another_folder_is_not() -> None:
    def files(folder: str) -> list[str]:
        return [f"{folder}/{n}.png" for n in TEN]

    assert fingerprint_of(files("/disk1/train")) == fingerprint_of(files("/scratch/job7/train"))
    assert fingerprint_of(files("/disk1/train")) != fingerprint_of(files("/disk1/val"))
    assert fingerprint_of(files("s3://a/train")) != fingerprint_of(files("s3://b/train"))
    assert fingerprint_of([(Path(file), 1) for file in files("/a/train")]) != fingerprint_of(TEN)


def test_records_that_a_reader_may_change_in_place_do_not_name_the_data() -> None:
    """Else a resume of an untouched list would be refused."""
    for changing in ([{"x": 1}], [[1, 2]], [torch.zeros(2)], [({"x": 1}, 2)], [object()]):
        assert fingerprint_of(changing) == ""


class Counted(list[int]):
    """Indices that count how many of them are looked at."""

    looked_at = 0

    def __getitem__(self, row: Any) -> Any:
        Counted.looked_at += 1
        return super().__getitem__(row)


def test_the_cost_does_not_grow_with_the_data() -> None:
    small, large = (torch_data.Subset(TEN, Counted([3] * size)) for size in (10**4, 10**6))
    for data in (small, large):
        Counted.looked_at = 0
        assert fingerprint_of(data)
        assert 1000 < Counted.looked_at <= 1024
    texts = {fingerprint_of(np.full(size, 3)) for size in (10, 10**7)}
    assert len(texts) == 2
