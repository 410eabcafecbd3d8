"""TableDataModule: files and columns in memory, statistics in the checkpoint, exact resumes."""

from pathlib import Path
from typing import Any

import datamodule_runs as runs
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_wine

import loaderkit as lk

SPEC = lk.TableColumns(target="kind", categorical=["grade"])


def wine() -> dict[str, Any]:
    data = load_wine()
    names = [name.replace("/", "_") for name in data.feature_names]
    columns = dict(zip(names, data.data.T, strict=True))
    columns["grade"] = np.array(["low", "mid", "high"])[np.digitize(data.data[:, 0], [12.5, 13.5])]
    return {**columns, "kind": np.array(data.target_names)[data.target]}


def part(rows: slice) -> dict[str, Any]:
    return {name: column[rows] for name, column in wine().items()}


TRAIN, VAL = part(slice(0, None, 2)), part(slice(1, None, 2))


def numbers(batch: Any) -> torch.Tensor:
    return torch.cat([batch["numeric"], batch["categorical"].float()], dim=1)


def model() -> runs.Recorder:
    return runs.Recorder(numbers, 14)


def write(folder: Path, suffix: str, name: str, columns: dict[str, Any]) -> str:
    path, frame = folder / f"{name}{suffix}", pd.DataFrame(columns)
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_feather(path)
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".feather"])
def test_files_and_columns_in_memory_are_the_same_data(suffix: str, tmp_path: Path) -> None:
    for name, columns in (("train", TRAIN), ("val", VAL)):
        write(tmp_path, suffix, name, columns)
    given = lk.TableDataModule(TRAIN, VAL, columns=SPEC)
    found = lk.TableDataModule(str(tmp_path / f"train{suffix}"), tmp_path / f"val{suffix}", columns=SPEC)
    assert found.statistics == given.statistics
    for one, other in zip(given.val_dataloader(), found.val_dataloader(), strict=True):
        assert list(one) == ["numeric", "categorical", "target"]
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_table_in_several_files_is_one(tmp_path: Path) -> None:
    rows = len(TRAIN["kind"])
    for number in range(3):
        cut = {name: column[number * rows // 3 : (number + 1) * rows // 3] for name, column in TRAIN.items()}
        write(tmp_path, ".csv", f"train-{number}", cut)
    found = lk.TableDataModule(str(tmp_path / "train-*.csv"), columns=SPEC)
    assert found.statistics == lk.TableDataModule(TRAIN, columns=SPEC).statistics


def test_what_a_model_needs_is_known_without_setup() -> None:
    data = lk.TableDataModule(pd.DataFrame(TRAIN), columns=SPEC)
    assert (data.num_numeric, data.cardinalities, data.num_classes) == (13, [4], 3)
    assert data.classes == ["class_0", "class_1", "class_2"]
    regression = lk.TableDataModule(TRAIN, columns=lk.TableColumns(target="alcohol"))
    with pytest.raises(ValueError, match="no classes: the target is 'alcohol', a regression"):
        regression.num_classes  # noqa: B018


def test_resume_equals_the_uninterrupted_run_and_predictions_need_no_training_data(tmp_path: Path) -> None:
    """Also where the file of the training data, named in the settings, is gone."""
    path = write(tmp_path, ".csv", "train", TRAIN)

    def data(workers: int = 0, **parts: Any) -> lk.TableDataModule:
        config = lk.LoaderConfig(batch_size=16, num_workers=workers, seed=3)
        return lk.TableDataModule(path, columns=SPEC, loader=config, **parts)

    checkpoint = runs.check_resumes(data, model, tmp_path, stops=[1, 4, 6, 8])
    fitted = data().statistics
    Path(path).unlink()
    unlabelled = {name: column for name, column in VAL.items() if name != "kind"}
    found = data(predict=unlabelled)
    outputs = runs.predict(tmp_path, model(), found, checkpoint)
    assert found.statistics == fitted
    assert sum(map(len, outputs)) == 89

    state = torch.load(checkpoint, weights_only=True)["TableDataModule"]
    assert len(str(state["train"])) < 1024
    assert len(str(state["statistics"])) < 2000
    loaded = lk.TableDataModule.load_from_checkpoint(checkpoint, predict=unlabelled)
    assert (loaded.statistics, loaded.cardinalities, loaded.num_classes) == (fitted, [4], 3)


def test_a_checkpoints_statistics_take_the_place_of_fitted_ones(tmp_path: Path) -> None:
    """Those that the weights were trained with, also where other training data was looked at before."""
    first = lk.TableDataModule(TRAIN, columns=SPEC)
    runs.fit(tmp_path, model(), first, saving=True)
    other = lk.TableDataModule(VAL, val=VAL, columns=SPEC)
    assert other.statistics != first.statistics
    before = next(iter(other.val_dataloader()))["numeric"]
    other.load_state_dict(torch.load(tmp_path / "saved" / "step=2.ckpt", weights_only=True)["TableDataModule"])
    assert other.statistics == first.statistics
    assert not torch.equal(next(iter(other.val_dataloader()))["numeric"], before)


def test_without_training_data_or_checkpoint_the_way_out_is_named() -> None:
    with pytest.raises(ValueError, match="no statistics: there is no training data, and no checkpoint of this class"):
        lk.TableDataModule(predict=VAL).predict_dataloader()


def test_digits_stay_text_where_the_training_data_has_text(tmp_path: Path) -> None:
    train = write(tmp_path, ".csv", "train", {"x": [1, 2, 3], "c": ["a", "007", "b"]})
    val = write(tmp_path, ".csv", "val", {"x": [1, 2], "c": ["007", "007"]})
    batch = next(iter(lk.TableDataModule(train, val, loader=lk.LoaderConfig(batch_size=2)).val_dataloader()))
    assert batch["categorical"].tolist() == [[1], [1]]


def test_a_category_without_rows_is_none(tmp_path: Path) -> None:
    """Arrow's dictionaries may hold values that no row has."""
    frame = {"c": pd.Categorical(["a", "a"], categories=["a", "gone"])}
    assert lk.TableDataModule(write(tmp_path, ".parquet", "train", frame)).cardinalities == [2]


def test_missing_values_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("x;c;n\n1;a;\n;b;2\n3;NA;4\n")
    data = lk.TableDataModule(
        path, columns=lk.TableColumns(missing="mean"), missing_values=["", "NA"], delimiter=";",
        loader=lk.LoaderConfig(batch_size=3, shuffle=False),
    )  # fmt: skip
    batch = next(iter(data.train_dataloader()))
    assert batch["numeric"][1, 0] == 0
    assert batch["numeric"][0, 1] == 0
    assert batch["categorical"].ravel().tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1\n", "can't be read as a table: .*[Ee]xpected 2 columns"),
        ("a,a\n1,2\n", "has the columns"),
        ("", "can't be read as a table"),
    ],
)
def test_a_broken_file_is_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"broken.csv: .*{message}|broken.csv: {message}"):
        lk.TableDataModule(path).statistics  # noqa: B018


def test_missing_files_and_other_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no shards at .*nowhere"):
        lk.TableDataModule(tmp_path / "nowhere.csv").statistics  # noqa: B018
    write(tmp_path, ".csv", "a", {"x": [1]})
    write(tmp_path, ".csv", "b", {"y": [1]})
    with pytest.raises(ValueError, match=r"b.csv: has the columns \['y'\], wanted \['x'\]"):
        lk.TableDataModule(tmp_path).statistics  # noqa: B018
    write(tmp_path, ".parquet", "lists", {"x": [[1, 2], [3]], "z": [1, 2]})
    with pytest.raises(ValueError, match=r"column 'x': holds list.*ignore="):
        lk.TableDataModule(tmp_path / "lists.parquet").statistics  # noqa: B018
    ignoring = lk.TableDataModule(tmp_path / "lists.parquet", columns=lk.TableColumns(ignore=["x"]))
    assert ignoring.num_numeric == 1


class Renamed(lk.TableDataModule):
    pass


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_checkpoint_of_a_class_of_another_name_is_said(tmp_path: Path) -> None:
    """Lightning passes its state over; the training data would be fitted to anew, without a word."""
    runs.fit(tmp_path, model(), lk.TableDataModule(TRAIN, columns=SPEC), saving=True)
    checkpoint = str(tmp_path / "saved" / "step=2.ckpt")
    with pytest.warns(UserWarning, match="data state of class 'TableDataModule', and this DataModule is 'Renamed'"):
        runs.trainer(tmp_path).predict(
            model(), datamodule=Renamed(TRAIN, predict=VAL, columns=SPEC), ckpt_path=checkpoint
        )


def test_columns_other_than_the_checkpoints_are_warned_of_with_both_values() -> None:
    first = lk.TableDataModule({"x": [1.0, 2.0], "c": ["a", "b"], "y": [0, 1]}, columns=lk.TableColumns(target="y"))
    assert first.num_numeric == 1
    state = first.state_dict()
    lk.TableDataModule().load_state_dict(state)  # takes what the checkpoint has
    for changes, message in (
        ({"target": "c"}, "target 'c', fitted 'y'"),
        ({"target": "y", "missing": "mean"}, "missing 'mean', fitted 'raise'"),
        ({"target": "y", "categorical": ["x"]}, r"categorical \['x'\], fitted \['c'\]"),
        ({"target": "y", "ignore": ["x"]}, r"ignore \['x'\], fitted \"with \['x'\] as features\""),
    ):
        with pytest.warns(UserWarning, match=message):
            lk.TableDataModule(columns=lk.TableColumns(**changes)).load_state_dict(state)
