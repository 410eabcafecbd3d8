"""Wrong data and settings are refused with an error that says what to give instead."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch.utils.data as torch_data

import loaderkit as lk

DATA = list(range(10))
COLUMNS = (np.zeros((4, 2)), np.zeros(4))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("data/*.tar", r"the dataset is 'data/\*.tar', wanted the data itself. For files use loaderkit.ImageFolder"),
        (Path("data"), "wanted the data itself"),
        ({"x": np.zeros(4)}, r"a dict of \['x'\], wanted samples by number. For columns use loaderkit.ArrayDataset"),
        ({"train": DATA, "val": DATA}, r"a dict of \['train', 'val'\], .* From a dict of datasets give one"),
        (pd.DataFrame({"a": [1]}), r"a DataFrame, wanted samples by number.*ArrayDataset"),
        (COLUMNS, r"a tuple of 2 arrays of length 4: columns, or samples\? For columns use loaderkit.ArrayDataset"),
        ((number for number in DATA), "generator has no __len__ or no __getitem__.* loaderkit.StreamDataset"),
        (torch_data.DataLoader(DATA), r"DataLoader has no .*, wanted a dataset with both \(not a loader of one\)"),
    ],
)
def test_what_is_no_dataset_is_refused(dataset: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        lk.Loader(dataset, 2)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sampler", "'sampler': Give it as order="),
        ("generator", "'generator': Give a number as seed="),
        ("in_order", "'in_order': Leave it out"),
        ("snapshot_every_n_steps", "'snapshot_every_n_steps': Leave it out: a state is exact at every batch"),
        ("pin_memory_device", "'pin_memory_device': Leave it out"),
        ("batchsize", "unexpected keyword argument 'batchsize': did you mean 'batch_size'"),
        ("samplers", r"'samplers': did you mean 'sampler'\? Give it as order="),
        ("xyz", "'xyz': see loaderkit.LoaderConfig"),
    ],
)
def test_a_wrong_name_of_a_setting_is_refused_with_the_right_one(name: str, hint: str) -> None:
    settings: dict[str, Any] = {name: None}
    with pytest.raises(TypeError, match=hint):
        lk.Loader(DATA, **settings)


def test_a_data_module_refuses_a_tuple_of_columns() -> None:
    with pytest.raises(TypeError, match=r"columns, or samples\? For columns use loaderkit.ArrayDataset"):
        lk.DataModule(COLUMNS)


def test_containers_of_samples_are_datasets() -> None:
    assert next(iter(lk.Loader({0: 5, 1: 6}, 2))).tolist() == [5, 6]
    assert next(iter(lk.Loader([np.zeros(3), np.zeros(3)], 2))).shape == (2, 3)
    assert next(iter(lk.Loader((7, 8), 2))).tolist() == [7, 8]


def test_a_plan_for_other_data_is_refused() -> None:
    for size in (4, 12):
        with pytest.raises(ValueError, match=rf"LengthBuckets has the lengths of {size} samples, the dataset has 10"):
            lk.Loader(DATA, plan=lk.LengthBuckets([1] * size, 2))
    some = lk.LengthBuckets([1] * 10, 2, order=lk.Subset([3, 4]))
    assert len(list(lk.Loader(DATA, plan=some))) == 1


@pytest.mark.parametrize("settings", [{"batch_size": 2}, {"drop_last": True}, {"tail": "pad"}])
def test_settings_that_are_the_plans_own_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"which alone makes the batches\. Give LengthBuckets these settings"):
        lk.Loader(DATA, plan=lk.LengthBuckets([1] * 10, 5), **settings)


def test_with_a_plan_a_data_modules_batch_size_is_that_of_evaluation() -> None:
    plan = lk.LengthBuckets([1] * 10, 5)
    data = lk.DataModule(DATA, val=DATA, loader=lk.LoaderConfig(plan=plan, batch_size=2, drop_last=True))
    data.setup("fit")
    assert [len(data.train_dataloader()), len(data.val_dataloader())] == [2, 5]


def test_an_order_of_batches_or_of_letters_is_refused() -> None:
    batches = torch_data.BatchSampler(torch_data.SequentialSampler(DATA), 2, drop_last=False)
    with pytest.raises(
        TypeError, match=r"the order gives .*, wanted integers.* Give a sampler of batches as batch_sampler="
    ):
        lk.Loader(DATA, 2, order=batches)
    with pytest.raises(TypeError, match="order is str, wanted a loaderkit order or a sampler"):
        lk.Loader(DATA, 2, order="random")


def test_a_streams_arguments_are_looked_at_when_it_is_made() -> None:
    with pytest.raises(TypeError, match=r"shards is of type function, read of type list; wanted a list of names"):
        lk.StreamDataset(lambda shard, start: iter(()), ["a"])  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"the reader takes \(shard\), wanted read\(shard, start\).* loaderkit.from_start"
    ):
        lk.StreamDataset(["a"], lambda shard: iter(()))  # type: ignore[arg-type,misc]
    with pytest.raises(
        ValueError, match=r"shards is the string '\*.gz', wanted a list of names. For a glob give sorted"
    ):
        lk.StreamDataset("*.gz", lk.LineReader())
    stream = lk.StreamDataset(["a"], lk.from_start(lambda shard: iter([1, 2])))
    assert next(iter(lk.Loader(stream, 2))).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lk.TableDataModule({"a": [1]}, columns="a"), r"columns is 'a', wanted a TableColumns"),
        (lambda: lk.TextDataModule({"text": ["a"]}, batching="packed"), "batching is 'packed', wanted a TextBatching"),
        (
            lambda: lk.TextDataModule({"text": ["a"]}, tokenizer="gpt2"),
            "tokenizer is of type str, wanted a function from a text",
        ),
    ],
)
def test_a_data_modules_settings_are_looked_at_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_data_that_is_no_such_data_is_named(tmp_path: Path) -> None:
    np.zeros(100, np.uint16).tofile(tmp_path / "a.tokens")
    texts = {"text": ["a"] * 20}
    refused: list[tuple[Any, str]] = [
        (lambda: lk.ShardDataModule(str(tmp_path / "a.tokens")), r"TokenDataset: missing .*'length'.* options="),
        (lambda: lk.TextDataModule(texts, text="txt"), r"has no \['txt'\], its fields are \['text'\]"),
        (lambda: lk.TextDataModule([texts], label="y"), r"has no \['y'\], its fields are \['text'\]"),
        (lambda: lk.DetectionDataModule([{"img": 1}]), r"sample 0 has \['img'\], wanted a dict with image"),
        (lambda: lk.ImageDataModule("*.tar"), r"For tar shards give train= and val=.* dataset='CIFAR10'"),
    ]
    for make, message in refused:
        with pytest.raises((TypeError, ValueError, FileNotFoundError), match=message):
            make().setup("fit")
    with pytest.raises(FileNotFoundError, match=r"no shards at 'some words' \(no such file or folder\)") as caught:
        lk.TextDataModule(["some words"]).setup("fit")
    assert caught.value.__notes__ == [
        "loaderkit: strings are paths. To pass the texts themselves: train={'text': texts}."
    ]
