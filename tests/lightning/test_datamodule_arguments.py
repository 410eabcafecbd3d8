"""What a DataModule takes: one dataset, a factory, several of them; what may be read in two ways is refused."""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from datamodule_runs import Recorder, fit, trainer
from torch.utils.data import ConcatDataset, DataLoader, Dataset

import loaderkit as lk

CONFIG = lk.LoaderConfig(batch_size=4)
SAMPLES: dict[str, list[Any]] = {
    "numbers": list(range(10)),
    "texts": [f"text {i}" for i in range(10)],
    "dicts": [{"x": i} for i in range(10)],
    "tuples": [(i, 2 * i) for i in range(10)],
    "scalars": [torch.tensor(i) for i in range(10)],
}


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("stage", ["train", "val", "test", "predict"])
@pytest.mark.parametrize("kind", SAMPLES)
def test_a_list_of_samples_is_one_dataset_in_each_stage(kind: str, stage: str) -> None:
    """Not ten datasets of one sample each."""
    data = lk.DataModule(**{stage: SAMPLES[kind]}, loader=CONFIG)
    loader = getattr(data, f"{stage}_dataloader")()
    assert [len(loader), len(loader.dataset)] == [3, 10]
    assert len(list(loader)) == 3


@pytest.mark.parametrize("one", [Numbers(), lk.ArrayDataset(torch.arange(10)), Numbers, lambda: Numbers()])
def test_datasets_and_factories_are_several_in_a_list_or_a_dict(one: Any) -> None:
    data = lk.DataModule(val=[one, one], test={"a": one, "b": one}, predict=one, loader=CONFIG)
    assert [len(loader) for loader in data.val_dataloader()] == [3, 3]
    assert {name: len(loader) for name, loader in data.test_dataloader().items()} == {"a": 3, "b": 3}
    assert sorted(i for batch in data.predict_dataloader() for i in batch.tolist()) == list(range(10))


def test_a_list_of_lists_is_one_dataset_or_several_if_a_dict_says_so() -> None:
    rows = [[i, 2 * i] for i in range(10)]
    for stage in ("val", "test", "predict"):
        for samples in (rows, [np.array(row) for row in rows], [torch.tensor(row) for row in rows]):
            with pytest.raises(ValueError, match=rf"{stage} is a list of 10 .*Give a dict by name: {{'all': {stage}}}"):
                lk.DataModule(**{stage: samples})
    loaders = lk.DataModule(val={"all": rows}, loader=CONFIG).val_dataloader()
    assert {name: len(loader) for name, loader in loaders.items()} == {"all": 3}
    assert len(lk.DataModule(rows, loader=CONFIG).train_dataloader()) == 3


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"train": "train.csv"},
            TypeError,
            r"train is the path 'train.csv', wanted a dataset. For files: lk.ShardData",
        ),
        ({"val": Path("val")}, TypeError, "val is the path 'val'"),
        ({"train": 5}, TypeError, "train is of type int, wanted a dataset"),
        ({"val": {"a": 5}}, TypeError, "val is of type int, wanted a dataset"),
        ({"train": (i for i in range(3))}, TypeError, "train is of type generator, wanted a dataset"),
        ({"train": DataLoader(Numbers())}, TypeError, "train is a DataLoader, wanted its dataset"),
        ({"val": lk.Loader(Numbers())}, TypeError, "val is a Loader, wanted its dataset"),
        ({"train": [Numbers(), Numbers()]}, TypeError, r"train is a list of datasets \(Numbers\), wanted one"),
        (
            {"train": {"x": torch.ones(3), "y": np.ones(3)}},
            ValueError,
            r"dict of arrays \('x', 'y'\): the columns of one",
        ),
        ({"train": Numbers(), "loader": {"batch_size": 4}}, TypeError, "loader is of type dict, wanted a LoaderConfig"),
        ({"train": Numbers(), "eval_loader": 4}, TypeError, "eval_loader is of type int, wanted a LoaderConfig"),
    ],
)
def test_what_is_no_data_is_refused_where_it_is_given(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        lk.DataModule(**settings)


def test_a_factory_of_something_else_is_named() -> None:
    with pytest.raises(TypeError, match="the factory's result is of type NoneType"):
        lk.DataModule(lambda: None).train_dataloader()
    with pytest.raises(TypeError, match=r"the factory's result is the path 'a.csv'"):
        lk.DataModule(val=lambda: "a.csv").val_dataloader()


def test_concatenated_datasets_and_dicts_of_them_train() -> None:
    whole = lk.DataModule(ConcatDataset([Numbers(), Numbers()]), loader=CONFIG).train_dataloader()
    assert sorted(i for batch in whole for i in batch.tolist()) == sorted(2 * list(range(10)))
    loaders = lk.DataModule({"a": Numbers(), "b": Numbers}, loader=CONFIG).train_dataloader()
    assert {name: len(loader) for name, loader in loaders.items()} == {"a": 3, "b": 3}


class Forgetful(lk.DataModule):
    def setup(self, stage: str) -> None:
        pass


def test_a_setup_that_leaves_out_ours_is_refused(tmp_path: Path) -> None:
    """Its training would not resume, without a word."""
    model = Recorder(lambda batch: batch.float()[:, None], 1)
    with pytest.raises(RuntimeError, match=r"Forgetful.setup does not call super\(\).setup\(stage\)"):
        fit(tmp_path, model, Forgetful(Numbers(), loader=CONFIG))


def test_another_datamodule_may_follow_in_the_same_trainer(tmp_path: Path) -> None:
    """Also one that knows nothing of ours."""

    class Other(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(Numbers(), 4)

    model, runs = Recorder(lambda batch: batch.float()[:, None], 1), trainer(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epochs, data in enumerate((lk.DataModule(Numbers(), loader=CONFIG), Other(), lk.DataModule(Numbers())), 1):
            runs.fit_loop.max_epochs = epochs
            runs.fit(model, datamodule=data)
    assert [sum(map(len, batches)) for batches in (model.seen[:3], model.seen[3:6], model.seen[6:])] == [10, 10, 10]


def test_a_repr_says_what_is_given_and_makes_nothing() -> None:
    """Lightning's str() would make loaders, in place of those in use."""
    data = lk.DataModule(Numbers, val=[Numbers()], test={"a": [1, 2], "b": lambda: Numbers()}, loader=CONFIG)
    settings = "batch_size=4, num_workers=0, engine='auto', rank 0 of 1)"
    given = "val=[Numbers of 10 samples], test={'a': list of 2 samples, 'b': what <lambda> makes}"
    assert repr(data) == f"DataModule(train=what Numbers makes, {given}, {settings}"
    batches = iter(data.train_dataloader())
    next(batches)
    assert str(data) == repr(data) == f"DataModule(train=Numbers of 10 samples, {given}, {settings}"
    assert len(list(batches)) == 2
    tables = lk.TableDataModule({"x": [1, 2], "y": [0, 1]}, columns=lk.TableColumns(target="y"))
    assert repr(tables).startswith("TableDataModule(train=2 columns, ")
    assert repr(lk.ShardDataModule("shards/*.tar", val="val.tar")).startswith(
        "ShardDataModule(train=shards/*.tar, val=val.tar, "
    )


def test_print_of_a_lightning_module_that_returns_loaders_fails_in_lightning() -> None:
    """A limit that the documentation states; if this fails, Lightning has mended it."""

    class Own(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            return lk.Loader(Numbers(), batch_size=4)

    with pytest.raises(AttributeError, match="available"):
        str(Own())
    assert "Own object at" in repr(Own())


def test_a_transform_of_pictures_is_one_for_each_use() -> None:
    with pytest.raises(TypeError, match="Did you mean 'train_transform' or 'eval_transform'"):
        lk.ImageDataModule(".", transform=abs)  # type: ignore[call-arg]


def test_an_object_that_encodes_is_no_function() -> None:
    with pytest.raises(TypeError, match=r"tokenizer=tokenizer\.encode"):
        lk.TextDataModule({"text": ["a"]}, tokenizer=object())  # type: ignore[arg-type]
