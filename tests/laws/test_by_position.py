"""Columns that other libraries index by label are read by position, wherever they enter."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import loaderkit as lk

pd = pytest.importorskip("pandas")
ROWS = 6
ORDER = [3, 1, 5, 0, 2, 4]  # as `frame.sample(frac=1)` leaves the labels
GAPS = [10, 30, 20, 11, 13, 12]  # as a split leaves them
NEGATIVE = [-1, -2, 0, 5, 7, -3]
VALUES = [10, 11, 12, 13, 14, 15]


def series(dtype: Any, labels: Any) -> Any:
    return pd.Series(pd.array(VALUES, dtype=dtype), index=labels)


COLUMNS: dict[str, Callable[[], Any]] = {
    **{
        f"Series of {dtype}": lambda dtype=dtype: series(dtype, ORDER)
        for dtype in ("int64", "float32", "Int64", "object")
    },
    "Series with gaps": lambda: series("int64", GAPS),
    "Series with negative labels": lambda: series("int64", NEGATIVE),
    "Series by text": lambda: series("int64", list("abcdef")),
    "Series by dates": lambda: series("int64", pd.date_range("2020-01-01", periods=ROWS)[::-1]),
    "Series by floats": lambda: series("float64", [0.5, 2.0, 1.0, 3.0, 0.0, 4.0]),
    "Series with repeated labels": lambda: series("int64", [0, 0, 1, 1, 2, 2]),
    "Series of a categorical": lambda: series("int64", ORDER).astype("category"),
    "Series of Arrow": lambda: series("int64[pyarrow]", ORDER),
    "Series of a frame's row slice": lambda: pd.DataFrame({"a": range(9, 20)}, index=range(11, 0, -1))["a"].iloc[1:7],
    "Index": lambda: pd.Index(VALUES),
    "Categorical": lambda: pd.Categorical(VALUES),
    "extension array": lambda: pd.array(VALUES, dtype="Int64"),
    "Arrow array": lambda: pytest.importorskip("pyarrow").array(VALUES),
    "Arrow chunked array": lambda: pytest.importorskip("pyarrow").chunked_array([VALUES[:2], VALUES[2:]]),
    "polars Series": lambda: pytest.importorskip("polars").Series(VALUES),
    "xarray DataArray": lambda: pytest.importorskip("xarray").DataArray(VALUES, coords={"t": ORDER}, dims="t"),
}
x = np.array(VALUES)
WAYS: dict[str, Callable[[Any], Any]] = {
    "Loader": lambda column: column,
    "ArrayDataset": lk.ArrayDataset,
    "ArrayDataset dict": lambda column: lk.ArrayDataset({"x": x, "y": column}),
    "ArrayDataset tuple": lambda column: lk.ArrayDataset((x, column)),
    "ArrayDataset list": lambda column: lk.ArrayDataset([x, column]),
    "ArrayDataset nested": lambda column: lk.ArrayDataset({"x": x, "y": {"z": (column,)}}),
    "ArrayDataset with a transform": lambda column: lk.ArrayDataset({"x": x, "y": column}, transform=dict),
    "RecordDataset": lk.RecordDataset,
    "ZipDataset": lambda column: lk.ZipDataset([x, column]),
    "ZipDataset by name": lambda column: lk.ZipDataset({"x": x, "y": column}),
    "ConcatDataset": lambda column: lk.ConcatDataset([column]),
    "MapDataset": lambda column: lk.MapDataset(column, int),
    "SubsetDataset": lambda column: lk.SubsetDataset(column, range(ROWS)),
    "Pipeline": lk.Pipeline,
    "CachedDataset": lambda column: lk.CachedDataset(column, max_bytes=1 << 16),
    "HFDataset": lk.HFDataset,
}


def numbers_of(batch: Any) -> list[list[int]]:
    """Return the numbers of each column of a batch."""
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    if isinstance(parts, torch.Tensor) or not isinstance(parts[0], torch.Tensor | dict | list | tuple):
        return [[int(value) for value in parts]]
    return [numbers for part in parts for numbers in numbers_of(part)]


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_is_read_by_position(kind: str) -> None:
    """However it enters, in a copy too, and next to an array of the same rows."""
    column = COLUMNS[kind]()
    for way, make in WAYS.items():
        loader = lk.Loader(pickle.loads(pickle.dumps(make(column))), 4, shuffle=True)
        wanted = [[VALUES[index] for index in loader.indices(0, number)] for number in range(len(loader))]
        assert sorted(value for batch in wanted for value in batch) == VALUES
        for batch, numbers in zip(loader, wanted, strict=True):
            assert all(column == numbers for column in numbers_of(batch)), way


def test_a_columns_dtype_is_that_of_the_batch() -> None:
    for dtype, wanted in {
        "int64": torch.int64,
        "float32": torch.float32,
        "uint8": torch.uint8,
        "bool": torch.bool,
        "Int32": torch.int32,
        "Float32": torch.float32,
        "boolean": torch.bool,
    }.items():
        values = [1, 0, 1, 1, 0, 0]
        column = pd.Series(
            pd.array(values if "ool" not in dtype else [v == 1 for v in values], dtype=dtype), index=ORDER
        )
        batch = next(iter(lk.Loader(lk.ArrayDataset({"y": column}), ROWS)))["y"]
        assert batch.dtype == wanted
        assert batch.tolist() == values
        assert next(iter(lk.Loader(column, ROWS))).dtype == wanted


def test_workers_read_the_same_rows() -> None:
    data = lk.ArrayDataset({"x": x, "y": COLUMNS["Series with gaps"]()})
    for engine in ("ring", "torch", "threads"):
        for batch in lk.Loader(data, 4, shuffle=True, num_workers=2, engine=engine):
            assert batch["x"].tolist() == batch["y"].tolist()


def test_a_column_with_missing_values_is_refused_where_it_becomes_a_batch() -> None:
    column = pd.Series(pd.array([1, None, 3], dtype="Int64"))
    with pytest.raises(lk.CollateError, match="NAType"):
        next(iter(lk.Loader(lk.ArrayDataset({"y": column}), 3)))


@pytest.mark.parametrize("way", WAYS)
def test_a_frame_is_refused_with_the_way_out(way: str) -> None:
    frame = pd.DataFrame({"a": VALUES})
    with pytest.raises(TypeError, match="DataFrame"):
        lk.Loader(WAYS[way](frame), 2)


def test_records_of_a_dict_are_refused() -> None:
    with pytest.raises(TypeError, match=r"the records are a dict, which gives its names.*dict.values\(\)"):
        lk.RecordDataset({"a": 1})
