"""Statistics of columns: what a slow, obvious computation gives; what can't be fitted is named."""

import json
import math
import statistics as plain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tier import examples

import loaderkit as lk

NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-(10**6), 10**6))
TEXTS = st.one_of(st.none(), st.sampled_from(["a", "b", "B", "", "é", "10"]))


def fit(columns: dict[str, Any], **spec: Any) -> Any:
    return lk.TableDataModule(columns, columns=lk.TableColumns(**spec)).statistics


def encode(train: dict[str, Any], val: dict[str, Any], **spec: Any) -> dict[str, torch.Tensor]:
    """Return other data as one batch, encoded with statistics that a checkpoint saved."""
    fitted = lk.TableDataModule(train, columns=lk.TableColumns(**spec))
    assert fitted.statistics
    data = lk.TableDataModule(val=val, loader=lk.LoaderConfig(batch_size=len(next(iter(val.values())))))
    data.load_state_dict(json.loads(json.dumps(fitted.state_dict())))
    assert data.statistics == fitted.statistics
    (batch,) = data.val_dataloader()
    return batch


@settings(max_examples=examples(150))
@given(rows=st.lists(st.tuples(NUMBERS, TEXTS), min_size=1, max_size=30), missing=st.sampled_from(["mean", "median"]))
def test_statistics_and_codes_are_those_of_an_obvious_computation(rows: list[Any], missing: Any) -> None:
    numbers, texts = [row[0] for row in rows], [row[1] for row in rows]
    present = [float(x) for x in numbers if x is not None]
    if not present or not any(texts):
        return
    spec: Any = {"missing": missing, "numeric": ["x"], "categorical": ["c"]}
    fitted = fit({"x": numbers, "c": texts}, **spec)
    mean, std, fill = fitted.numeric["x"]
    spread = plain.pstdev(present)
    scale = max(1.0, max(map(abs, present)))
    assert math.isclose(mean, plain.fmean(present), abs_tol=1e-9 * scale)
    assert math.isclose(std, spread, rel_tol=1e-6, abs_tol=1e-9 * scale) or (std == 1 and spread < 1e-9 * scale)
    wanted_fill = plain.median(present) if missing == "median" else mean
    assert math.isclose(fill, wanted_fill, rel_tol=1e-12, abs_tol=1e-9 * scale)
    assert fitted.categorical["c"] == sorted({text for text in texts if text is not None})

    arrays = encode({"x": numbers, "c": texts}, {"c": texts, "x": numbers}, **spec)
    for row, (number, text) in enumerate(rows):
        value = ((fill if number is None else number) - mean) / std
        assert math.isclose(arrays["numeric"][row, 0], value, rel_tol=1e-5, abs_tol=1e-5)
        code = 0 if text is None else 1 + fitted.categorical["c"].index(text)
        assert arrays["categorical"][row, 0] == code
    assert arrays["numeric"].dtype == torch.float32
    assert arrays["categorical"].dtype == torch.int64


def test_validation_data_is_encoded_by_the_training_datas_statistics() -> None:
    train = {"x": [1.0, 3.0], "c": ["b", "a"], "y": ["no", "yes"]}
    fitted = fit(train, target="y")
    assert fitted.numeric == {"x": (2.0, 1.0, 2.0)}
    assert fitted.cardinalities == [3]
    arrays = encode(train, {"y": ["yes"] * 3, "c": ["z", "a", "b"], "x": [100, 2, 0]}, target="y")
    assert arrays["numeric"].tolist() == [[98], [0], [-2]]
    assert arrays["categorical"].tolist() == [[0], [1], [2]]  # z is unknown
    assert arrays["target"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        ([3, 1, 3], None, [1, 3]),
        (["b", "a", "b"], None, ["a", "b"]),
        ([True, False, True], None, [False, True]),
        ([3.0, 1.0, 3.5], None, None),
        ([3.0, 1.0, 3.0], "classification", [1, 3]),
        ([3, 1, 3], "regression", None),
        (torch.tensor([3, 1, 3]), None, [1, 3]),
    ],
)
def test_the_task_follows_from_the_target_or_is_given(values: Any, task: Any, classes: Any) -> None:
    table = {"x": [1, 2, 3], "y": values}
    assert fit(table, target="y", task=task).classes == classes
    target = encode(table, table, target="y", task=task)["target"]
    if classes is None:
        assert target.dtype == torch.float32
        assert target.tolist() == [3, 1, values[2]]
    else:
        assert target.dtype == torch.int64
        assert [classes[code] for code in target] == list(values)


def test_roles_are_inferred_or_given() -> None:
    columns = {"i": [1, 2], "f": [0.5, 1], "b": [True, False], "t": ["u", "v"], "code": [7, 9], "id": [5, 6]}
    fitted = fit(columns, categorical=["code"], ignore=["id"])
    assert list(fitted.numeric) == ["i", "f"]
    assert fitted.categorical == {"b": [False, True], "t": ["u", "v"], "code": [7, 9]}


def test_the_most_frequent_categories_are_kept_and_that_is_said() -> None:
    values = ["c", "b", "b", "a", "a", "d", "a"]
    with pytest.warns(UserWarning, match="has 4 categories. The 2 most frequent are known .*2 of 7 rows"):
        fitted = fit({"c": values}, max_categories=2)
    assert fitted.categorical == {"c": ["a", "b"]}


def test_a_constant_column_becomes_zero() -> None:
    assert encode({"x": [0.1] * 10}, {"x": [0.1, 1.1]})["numeric"].ravel().tolist() == [0, 1]


def test_missing_values_do_not_change_the_categories_of_integers() -> None:
    arrays = encode({"x": [1, 2]}, {"x": [1.0, np.nan, 2.0]}, categorical=["x"], missing="mean")
    assert arrays["categorical"].ravel().tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("columns", "spec", "message"),
    [
        ({"x": [1, None]}, {}, "column 'x': 1 of 2 values are missing, the first in row 1.*missing='mean'"),
        ({"x": ["a", None]}, {}, "column 'x': 1 of 2 values are missing.*a category of their own"),
        ({"x": [1, 2]}, {"target": "y"}, r"has no columns \['y'\], its columns are \['x'\]"),
        ({"x": [1, 2]}, {"numeric": ["z"]}, r"has no columns \['z'\]"),
        ({"x": [1, math.inf]}, {}, "column 'x': has 1 infinite values, the first in row 1"),
        ({"x": ["1", "2", "?"]}, {}, r"column 'x': holds numbers and \['\?'\]. Name it in numeric="),
        ({"x": ["1", "?"]}, {"numeric": ["x"]}, r"column 'x': holds text, '\?' in row 1; wanted numbers"),
        ({"x": [1, "a"]}, {}, "column 'x': holds numbers and text"),
        ({"x": [[1, 2]]}, {}, r"column 'x': has the shape \(1, 2\), wanted \(rows,\)"),
        ({"x": [1, 2], "y": [1]}, {}, "its columns have the lengths"),
        ({"x": [1e308, -1e308, 1e308, 1e308]}, {}, "too large for a mean"),
        ({"x": []}, {}, "nothing to fit: "),
        ({"y": [1]}, {"target": "y"}, "nothing to fit: "),
        ({"x": [np.nan, np.nan]}, {"missing": "mean"}, "all 2 values are missing. Leave it out"),
        ({"x": [1] * 101, "y": list(range(101))}, {"target": "y"}, "101 different integers, which may be"),
    ],
)
def test_what_cant_be_fitted_is_named(columns: Any, spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(columns, **spec)


@pytest.mark.parametrize(
    ("columns", "spec", "message"),
    [
        ({"c": ["a"], "y": ["n"]}, {}, r"val: lacks the columns \['x'\]"),
        ({"x": [1], "c": ["a"]}, {}, r"val: lacks the columns \['y'\]"),
        ({"x": ["one"], "c": ["a"], "y": ["n"]}, {}, "column 'x': holds text, 'one' in row 0; wanted numbers"),
        (
            {"x": [1], "c": [4], "y": ["n"]},
            {},
            "column 'c': holds numbers such as 4, but was fitted to text such as 'a'",
        ),
        ({"x": [1], "c": ["z"], "y": ["n"]}, {"unknown": "raise"}, "column 'c': 'z' in row 0 is not in the training"),
        ({"x": [1], "c": ["a"], "y": ["m"]}, {}, "target 'y': 'm' in row 0 is not in the training data"),
        ({"x": [None], "c": ["a"], "y": ["n"]}, {}, "column 'x': 1 of 1 values are missing"),
        ({"x": [1], "c": ["a"], "y": [None]}, {"missing": "mean"}, "target 'y': 1 of 1 values are missing"),
    ],
)
def test_data_that_has_changed_is_named(columns: Any, spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode({"x": [1, 2], "c": ["a", "b"], "y": ["n", "y"]}, columns, target="y", **spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"numeric": ["a"], "target": "a"}, r"\['a'\] are named more than once"),
        ({"numeric": "age"}, "numeric is 'age', wanted a list"),
        ({"missing": "zero"}, "missing is 'zero', wanted 'raise' or 'mean' or 'median'"),
        ({"unknown": None}, "unknown is None"),
        ({"task": "ranking"}, "task is 'ranking'"),
        ({"max_categories": 0}, "max_categories is 0"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lk.TableColumns(**spec)


def test_statistics_of_another_version_are_refused() -> None:
    with pytest.raises(lk.StateError, match="has version 2, this loaderkit reads version 3"):
        lk.TableDataModule().load_state_dict({"statistics": {"version": 2, "numeric": []}})
