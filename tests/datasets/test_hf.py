"""Hugging Face datasets: their rows, in their format; transforms draw for their own row."""

import json
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pytest
import torch
import torch.utils.data as torch_data
from drawing import add_draws, draws, equal
from sealed import reseal
from shards import as_list, check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.sampling.fingerprint import fingerprint
from loaderkit.system.stack import stack


def rows(size: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"é{number}", "list": list(range(number % 3))} for number in range(size)]


def with_plain_lists(row: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, list) else value for name, value in row.items()}


def make(size: int = 10) -> Any:
    return datasets.Dataset.from_list(rows(size))


@pytest.mark.parametrize("size", [1, 2, 10])
def test_the_samples_are_the_rows(size: int) -> None:
    check_reads(lk.HFDataset(make(size), transform=with_plain_lists), rows(size))
    assert list(lk.HFDataset(make(size))) == rows(size)  # lists that know their dtype equal others


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_the_rows_are_in_the_datasets_format(form: str | None) -> None:
    data = make().with_format(form).select(range(2, 9)).remove_columns("text")
    ours = lk.HFDataset(data, transform=with_plain_lists)
    check_reads(ours, [data[index] for index in range(7)])
    batch = next(iter(lk.Loader(lk.HFDataset(data.select_columns("id")), 7)))
    assert equal(batch, {"id": torch.arange(2, 9)})


NUMBERS = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(["float16"] if int(pyarrow.__version__.split(".")[0]) >= 21 else []),  # older ones take no floats for it
    "float32",
    "float64",
]
Value, Of = datasets.Value, datasets.Sequence


def typed(dtype: str) -> tuple[Any, dict[str, Any]]:
    """A dataset with a column of each form, and what a batch of its rows 1 and 0 has in it."""
    array = np.arange(24).astype(dtype).reshape(2, 3, 4)
    wanted = torch.from_numpy(array[[1, 0]])
    columns: dict[str, tuple[Any, Any, Any]] = {
        "number": (Value(dtype), array[:, 0, 0], wanted[:, 0, 0]),
        "list": (Of(Value(dtype)), array[:, 0], wanted[:, 0]),
        "fixed": (Of(Value(dtype), length=4), array[:, 0], wanted[:, 0]),
        "lists": (Of(Of(Value(dtype))), array, wanted),
        "array": (datasets.Array2D((3, 4), dtype), array, wanted),
        "struct": ({"a": Value(dtype), "b": [Value(dtype)]}, None, {"a": wanted[:, 0, 0], "b": wanted[:, 0]}),
        "structs": ([{"a": Value(dtype)}], None, [{"a": wanted[:, 0, 0]}]),
    }
    rows = [
        {
            **{name: values[row].tolist() for name, (_, values, _) in columns.items() if values is not None},
            "struct": {"a": array[row, 0, 0].item(), "b": array[row, 0].tolist()},
            "structs": [{"a": array[row, 0, 0].item()}],
        }
        for row in range(2)
    ]
    features = datasets.Features({name: feature for name, (feature, _, _) in columns.items()})
    return datasets.Dataset.from_list(rows, features=features), {name: batch for name, (_, _, batch) in columns.items()}


ENTRIES: dict[str, Any] = {
    "Loader": lambda data: data,
    "HFDataset": lk.HFDataset,
    "SubsetDataset": lambda data: lk.SubsetDataset(data, [0, 1]),
    "Pipeline": lambda data: lk.Pipeline(data).take(2),
    "ConcatDataset": lambda data: lk.ConcatDataset([data]),
    "pickled": lambda data: pickle.loads(pickle.dumps(lk.HFDataset(data))),
    "CachedDataset": lambda data: lk.CachedDataset(data, max_bytes=1 << 20),
    "one by one": lambda data: lk.HFDataset(data, transform=dict),
}


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_batch_has_the_dtypes_and_shapes_of_the_features(dtype: str) -> None:
    """However the dataset enters, and it is the collated samples."""
    data, wanted = typed(dtype)
    for name, enter in ENTRIES.items():
        dataset = enter(data)
        assert equal(next(iter(lk.Loader(dataset, 2, order=[1, 0]))), wanted), name
    ours = lk.HFDataset(data)
    assert equal(stack([ours[1], ours[0]]), wanted)
    assert equal(stack(ours.__getitems__([1, 0])), wanted)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_stream_of_the_library_has_the_dtypes_of_its_features(dtype: str) -> None:
    """If it knows them: a function that maps it makes others."""
    data, wanted = typed(dtype)
    stream = data.select([1, 0]).to_iterable_dataset()
    assert equal(next(iter(lk.Loader(stream, 2))), wanted)
    mapped = stream.map(lambda row: {"number": row["number"]}, remove_columns=list(wanted))
    assert next(iter(lk.Loader(mapped, 2)))["number"].tolist() == wanted["number"].tolist()
    batch = next(iter(lk.Loader(stream.with_format("torch"), 2)))
    assert batch["number"].tolist() == wanted["number"].tolist()


@pytest.mark.parametrize("dtype", ["int8", "float32", "int64"])
def test_lists_of_numbers_stay_lists(dtype: str) -> None:
    """Joining them does not add them, and what looks for lists finds them."""
    data, _ = typed(dtype)
    row = lk.HFDataset(data)[0]
    assert isinstance(row["list"], list)
    assert row["list"] + [7] == [*row["list"], 7] == [0, 1, 2, 3, 7]
    assert row == data[0]
    assert np.asarray(row["lists"]).dtype == dtype
    assert np.asarray(row["list"], dtype=np.int16).dtype == np.int16
    padded = next(iter(lk.Loader(data.select_columns("list"), 2, collate_fn=lk.PadCollate({"list": lk.Pad()}))))["list"]
    assert padded.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_a_format_is_left_to_the_library(form: str) -> None:
    data = typed("float32")[0].select_columns(["number", "list"]).with_format(form)
    for ours in (lk.HFDataset(data)[0], lk.HFDataset(data).__getitems__([0])[0]):
        assert equal(ours, data[0])


def test_missing_numbers_are_named() -> None:
    features = {"x": Value("float32"), "l": Of(Value("int8")), "d": Of(Of(Value("float32"))), "same": Value("string")}
    rows = [{"x": 1, "l": [1], "d": [[1.0]], "same": "a"}, {"x": None, "l": None, "d": [[None]], "same": "b"}]
    data = datasets.Dataset.from_list(
        [*rows, {"x": 1, "l": [1, 2], "d": [[1], [2, 3]], "same": ""}], features=datasets.Features(features)
    )
    assert lk.HFDataset(data)[1] == rows[1]
    for name, row, message in (
        ("x", 1, "field 'x' has types .*NoneType"),
        ("l", 1, "field 'l' (is missing|has types)"),
        ("d", 1, "field 'd' has lists that form no array: field 'd' has missing values"),
        ("l", 2, "field 'l' has shapes.*PadCollate"),
        ("d", 2, "field 'd' has lists that form no array"),
    ):
        with pytest.raises(lk.CollateError, match=message):
            next(iter(lk.Loader(data.select_columns(name), 2, order=[0, row])))


@pytest.mark.parametrize("size", [1, 7, 10])
def test_the_laws(size: int, tmp_path: Path) -> None:
    make(size).save_to_disk(str(tmp_path / "data"))

    def loaded() -> Any:
        return lk.HFDataset(datasets.load_from_disk(str(tmp_path / "data")), transform=with_draws)

    check_laws(loaded, lambda row: int(row["id"]))


def drawing_batch(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"id": batch["id"], "draws": [draws() for _ in batch["id"]]}


def test_the_own_transform_of_a_hf_dataset_draws_under_the_seed_of_its_row() -> None:
    """Whatever batch the row is in."""
    data = lk.HFDataset(make().with_transform(drawing_batch), transform=add_draws)
    runs = [[row for batch in lk.Loader(data, size, collate_fn=as_list) for row in batch] for size in (2, 5)]
    assert len(runs[0]) == 10
    assert equal(runs[0], runs[1])
    assert len({tuple(row["draws"].tolist()) for row, _ in runs[0]}) == 10


def test_the_fingerprint_is_the_librarys() -> None:
    data = make()
    assert lk.HFDataset(data).fingerprint() == data._fingerprint == make()._fingerprint
    assert lk.HFDataset(data.select([1, 0])).fingerprint() != data._fingerprint
    assert data._fingerprint in fingerprint(lk.HFDataset(data), 10)


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": 2 * row["id"]}


def test_other_kinds_are_refused() -> None:
    with pytest.raises(TypeError, match=r"found the string 'imdb', wanted a datasets\.Dataset"):
        lk.HFDataset("imdb")
    with pytest.raises(TypeError, match=r"with the splits \['train'\], wanted one"):
        lk.HFDataset(datasets.DatasetDict({"train": make()}))
    with pytest.raises(TypeError, match=r"of type IterableDataset, wanted a dataset .* without streaming=True"):
        lk.HFDataset(make().to_iterable_dataset())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_was_looked_at_before_is_read_from_its_start(workers: int) -> None:
    """Its state_dict() tells where it was last read, and its iter() starts at the beginning."""
    stream = make(12).select_columns("id").to_iterable_dataset(num_shards=2)
    next(iter(stream))
    loaders = [lk.Loader(stream, 2, num_workers=workers) for _ in range(2)]
    next(iter(loaders[0]))
    state = loaders[0].state_dict()
    for loader in (loaders[1], lk.Loader(stream, 2, num_workers=workers)):
        for _ in range(2):
            epoch = [batch["id"].tolist() for batch in loader]
            assert sorted(index for batch in epoch for index in batch) == list(range(12))
        loader.seek(epoch=0)
        assert [batch["id"].tolist() for batch in loader] == epoch
        loader.load_state_dict(state)
        assert [batch["id"].tolist() for batch in loader] == epoch[1:]
        loader.close()


def streamed(how: str) -> Any:
    """A stream that shares nothing with others: open iterators of one of the library's streams disturb each other."""
    streams = [make(12).select_columns("id").to_iterable_dataset(num_shards=2) for _ in range(2)]
    shuffled = streams[0].shuffle(seed=3, buffer_size=4)
    return {
        "shuffled": shuffled,
        "shuffled and mapped": shuffled.map(doubled),
        "with another": datasets.interleave_datasets([shuffled, streams[1]]),
        "as it is": streams[0],
    }[how]


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["shuffled", "shuffled and mapped", "with another", "as it is"])
def test_a_stream_resumes_exactly_although_its_state_lacks_the_shuffle_buffer(how: str, workers: int) -> None:
    whole = [batch["id"].tolist() for batch in lk.Loader(streamed(how), 2, num_workers=workers)]
    assert len(whole) >= 6
    for stop in (1, 2, 4, 5):
        loader = lk.Loader(streamed(how), 2, num_workers=workers)
        batches = iter(loader)
        assert [next(batches)["id"].tolist() for _ in range(stop)] == whole[:stop]
        state = loader.state_dict()
        loader.close()
        assert (state["stream"]["resume"] == "by its own state") == (how == "as it is")
        resumed = lk.Loader(streamed(how), 2, num_workers=workers)
        resumed.load_state_dict(state)
        assert [batch["id"].tolist() for batch in resumed] == whole[stop:]
        resumed.close()


def in_shards(function: Any = None) -> Any:
    stream = make(40).select_columns("id").to_iterable_dataset(num_shards=4)
    return (stream.map(function) if function else stream).with_format("torch")


def of_epoch(epoch: int) -> list[list[int]]:
    """Return what two workers of a DataLoader give in an epoch that is set before they start."""
    stream = in_shards()
    stream.set_epoch(epoch)
    return [batch["id"].tolist() for batch in torch_data.DataLoader(stream, 2, num_workers=2)]


def add_together(met: Any) -> Any:
    """Return `set_epoch` with a certain order of events: all workers take the difference before one of them adds it."""

    def set_epoch(self: Any, epoch: int) -> None:
        difference = epoch - self._epoch
        if torch_data.get_worker_info() is not None:
            met.wait(60)
        self._epoch += difference
        if torch_data.get_worker_info() is not None:
            met.wait(60)

    return set_epoch


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_workers_of_a_stream_are_in_one_epoch_although_they_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [of_epoch(epoch) for epoch in range(3)]
    if datasets.__version__.startswith("4.") and wanted[0] == wanted[2]:
        pytest.skip("in datasets 4.0 to 4.2 epochs of this stream have the same order")
    assert wanted[0] != wanted[2] != wanted[1]
    met = multiprocessing.get_context("fork").Barrier(2)
    monkeypatch.setattr(datasets.IterableDataset, "set_epoch", add_together(met))
    loader = lk.Loader(in_shards(), 2, num_workers=2)
    for epoch in range(3):
        state = loader.state_dict()
        batches = iter(loader)
        got = [next(batches)["id"].tolist() for _ in range(3)]
        state = loader.state_dict()
        assert got + [batch["id"].tolist() for batch in batches] == wanted[epoch]
        lanes = [json.loads(lane[2])["epoch"] for lane in state["lanes"]]
        assert lanes == [epoch, epoch]
        again = lk.Loader(in_shards(), 2, num_workers=2)
        again.load_state_dict(state)
        assert [batch["id"].tolist() for batch in again] == wanted[epoch][3:]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_a_stream_would_leave_out_is_refused(workers: int) -> None:
    """It is that of another epoch, as workers that shared one could write."""
    loader = lk.Loader(in_shards(), 2, num_workers=workers)
    list(loader)
    next(iter(loader))
    state = loader.state_dict()
    loader.close()
    cycle, samples, own = state["lanes"][0]
    assert (cycle, samples, json.loads(own)["epoch"]) == (1, 2, 1)
    wrong = reseal(state, lanes=[[cycle, samples, json.dumps(json.loads(own) | {"epoch": 2})]])
    again = lk.Loader(in_shards(), 2, num_workers=workers)
    with pytest.raises(
        lk.StateError, match=r"wanted a state in epoch 1: the dataset leaves out one of another epoch.*seek"
    ):
        again.load_state_dict(wrong)
    again.load_state_dict(state)
    assert len(list(again)) == 19


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_is_set_to_another_epoch_is_an_error(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.IterableDataset, "set_epoch", lambda self, epoch: self._epoch.fill_(9 * epoch))
    check_other_epoch(in_shards(), workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_reads_another_epoch_is_an_error(workers: int) -> None:
    """Another process may set it, in memory that they share, before the first sample is read."""
    held: list[Any] = []

    def disturb(sample: Any) -> Any:
        if held[0].epoch:
            held[0].set_epoch(9)
        return sample

    held.append(in_shards(disturb))
    check_other_epoch(held[0], workers)


def check_other_epoch(stream: Any, workers: int) -> None:
    loader = lk.Loader(stream, 2, num_workers=workers, multiprocessing_context="fork" if workers else None)
    assert len(list(loader)) == 20
    with pytest.raises(
        RuntimeError, match=r"Dataset is in epoch 9 after set_epoch\(1\).*Leave its epochs to the Loader"
    ):
        list(loader)
