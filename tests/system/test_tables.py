"""Tables and columns of other libraries are known by their types, and columns are read by position."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loaderkit.system.tables import by_position, columns_of, frame_way_out, is_frame

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
LABELS = [2, 0, 1]
NUMBERS = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64"]


def polars() -> Any:
    return pytest.importorskip("polars")


def arrow_type(dtype: str) -> Any:
    return pa.from_numpy_dtype(np.dtype(dtype))


def nullable(dtype: str) -> str:
    """Return pandas' own name of a dtype with missing values."""
    return (
        "boolean" if dtype == "bool" else dtype.replace("uint", "UInt").replace("int", "Int").replace("float", "Float")
    )


def halves(array: Any) -> Any:
    return pa.chunked_array([array.slice(0, 1), array.slice(1)])


COLUMNS: dict[str, Callable[[Any], Any]] = {  # of an array (3,)
    "Series": lambda array: pd.Series(array, index=LABELS),
    "Series, sliced": lambda array: pd.Series([*array, *array], index=[*LABELS, *LABELS]).iloc[3:].astype(array.dtype),
    "Index": pd.Index,
    "nullable": lambda array: pd.Series(array, index=LABELS).astype(nullable(str(array.dtype))),
    "nullable array": lambda array: pd.array(array, dtype=nullable(str(array.dtype))),
    "Arrow in pandas": lambda array: pd.Series(array, index=LABELS).astype(pd.ArrowDtype(arrow_type(str(array.dtype)))),
    "categories": lambda array: pd.Series(array, index=LABELS).astype("category"),
    "Categorical": pd.Categorical,
    "sparse": lambda array: pd.Series(array, index=LABELS).astype(pd.SparseDtype(array.dtype)),
    "Arrow": lambda array: pa.array(array),
    "Arrow in chunks": lambda array: halves(pa.array(array)),
    "Arrow dictionary": lambda array: pa.array(array).dictionary_encode(),
    "polars": lambda array: polars().Series(array),
    "polars in chunks": lambda array: polars().concat(
        [polars().Series(array[:1]), polars().Series(array[1:])], rechunk=False
    ),
    "xarray": lambda array: pytest.importorskip("xarray").DataArray(array, dims="t", coords={"t": LABELS}),
    "zarr": lambda array: pytest.importorskip("zarr").array(array),
}
MISSING: dict[str, Callable[[], Any]] = {
    "nullable": lambda: pd.Series([1, None, 3], index=LABELS, dtype="Int8"),
    "Arrow in pandas": lambda: pd.Series([1, None, 3], index=LABELS, dtype="int8[pyarrow]"),
    "Arrow": lambda: pa.array([1, None, 3], pa.int8()),
    "Arrow in chunks": lambda: halves(pa.array([1, None, 3], pa.int8())),
    "polars": lambda: polars().Series([1, None, 3], dtype=polars().Int8),
}
LISTS: dict[str, Callable[[], Any]] = {
    "Arrow": lambda: pa.array([[1, 2], [3]], pa.list_(pa.int16())),
    "Arrow in pandas": lambda: pd.Series(
        pd.array([[1, 2], [3]], dtype=pd.ArrowDtype(pa.list_(pa.int16()))), index=[1, 0]
    ),
    "polars": lambda: polars().Series([[1, 2], [3]], dtype=polars().List(polars().Int16)),
}
SQUARES = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
ARRAYS: dict[str, Callable[[], Any]] = {
    "Arrow tensors": lambda: pa.FixedShapeTensorArray.from_numpy_ndarray(SQUARES),
    "Arrow lists": lambda: pa.array(SQUARES.tolist(), pa.list_(pa.list_(pa.float32()))),
    "Arrow lists of one size": lambda: pa.array(SQUARES.tolist(), pa.list_(pa.list_(pa.float32(), 2), 2)),
    "polars": lambda: polars().Series(SQUARES.tolist(), dtype=polars().Array(polars().Float32, (2, 2))),
    "xarray": lambda: pytest.importorskip("xarray").DataArray(SQUARES, dims=("t", "x", "y"), coords={"t": [1, 0]}),
    "zarr": lambda: pytest.importorskip("zarr").array(SQUARES),
}
TABLES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.DataFrame({"a": [1, 2, 3]}, index=LABELS),
    "Arrow": lambda: pa.table({"a": [1, 2, 3]}),
    "Arrow batch": lambda: pa.record_batch({"a": pa.array([1, 2, 3])}),
    "polars": lambda: polars().DataFrame({"a": [1, 2, 3]}),
    "xarray": lambda: pytest.importorskip("xarray").Dataset({"a": ("t", [1, 2, 3])}),
}
UNREAD: dict[str, Callable[[], Any]] = {
    "polars": lambda: polars().LazyFrame({"a": [1, 2, 3]}),
    "Arrow": lambda: pytest.importorskip("pyarrow.dataset").dataset(pa.table({"a": [1, 2, 3]})),
}


def rows_of(column: Any, size: int) -> list[Any]:
    """Return a column's rows, after a check that a copy has the same, and that rows count from the end, too."""
    found = by_position(column)
    assert len(found) == size
    rows = [found[row] for row in range(size)]
    for other in (pickle.loads(pickle.dumps(found)), by_position(found)):
        assert [repr(other[row - size]) for row in range(size)] == list(map(repr, rows))
    for outside in (size, -size - 1):
        with pytest.raises(IndexError):
            found[outside]
    return rows


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("kind", COLUMNS)
def test_numbers_are_read_by_position_and_keep_their_dtype(kind: str, dtype: str) -> None:
    array = np.array([1, 0, 1], dtype)
    rows = rows_of(COLUMNS[kind](array), 3)
    assert rows == array.tolist()
    assert np.asarray(rows).dtype == dtype


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("kind", ["Series", "Index", "nullable", "Arrow in pandas", "Arrow", "polars"])
def test_numbers_are_an_array_that_shares_their_memory(kind: str, dtype: str) -> None:
    column = COLUMNS[kind](np.array([1, 0, 1] * 1000, dtype)[:3])
    first, second = by_position(column), by_position(column)
    assert isinstance(first, np.ndarray)
    packed = dtype == "bool" and kind in ("Arrow in pandas", "Arrow", "polars")  # a bit each
    assert np.shares_memory(first, second) is not packed


@pytest.mark.parametrize("kind", MISSING)
def test_a_missing_number_stays_missing(kind: str) -> None:
    first, missing, last = rows_of(MISSING[kind](), 3)
    assert type(first) is type(last) is np.int8
    assert (first, last) == (1, 3)
    assert missing is None or missing is pd.NA


@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_numbers_are_arrays(kind: str) -> None:
    rows = rows_of(LISTS[kind](), 2)
    assert [row.tolist() for row in rows] == [[1, 2], [3]]
    assert {row.dtype for row in rows} == {np.dtype(np.int16)}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_keep_their_shape_and_can_be_written(kind: str) -> None:
    rows = rows_of(ARRAYS[kind](), 2)
    np.testing.assert_array_equal(np.stack(rows), SQUARES)
    assert {row.dtype for row in rows} == {SQUARES.dtype}
    rows[0][:] = 7
    np.testing.assert_array_equal(rows_of(ARRAYS[kind](), 2)[0], SQUARES[0])


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["a", "b", "a"], index=LABELS),
        pd.Series(["a", "b", "a"], index=LABELS, dtype=object),
        pd.Series(["a", "b", "a"], index=LABELS).astype("category"),
        pd.array(["a", "b", "a"], dtype="string"),
        pa.array(["a", "b", "a"]),
        halves(pa.array(["a", "b", "a"]).dictionary_encode()),
    ],
    ids=lambda column: f"{type(column).__name__} {getattr(column, 'dtype', '')}",
)
def test_texts_are_texts(column: Any) -> None:
    assert rows_of(column, 3) == ["a", "b", "a"]


def test_times_are_what_pandas_gives_by_position() -> None:
    for index in (
        pd.date_range("2020", periods=3),
        pd.date_range("2020", periods=3, tz="UTC"),
        pd.timedelta_range("1D", periods=3),
    ):
        assert rows_of(pd.Series(index, index=LABELS), 3) == list(index)
    pairs = pd.MultiIndex.from_tuples([(1, "a"), (2, "b")])
    assert rows_of(pairs, 2) == list(pairs)


def test_polars_texts_and_structs_are_pythons() -> None:
    pl = polars()
    assert rows_of(pl.Series(["a", None]), 2) == ["a", None]
    assert rows_of(pl.Series(["a", "b"], dtype=pl.Categorical), 2) == ["a", "b"]
    assert rows_of(pl.Series([{"a": 1}, {"a": 2}]), 2) == [{"a": 1}, {"a": 2}]
    assert rows_of(pl.Series([[1, None], None]), 2) == [[1, None], None]


@pytest.mark.parametrize("value", [[1, 2], (1, 2), range(2), np.arange(2), {"a": 1}, "text", 3, None])
def test_other_values_stay_as_they_are(value: Any) -> None:
    assert by_position(value) is value
    assert not is_frame(value)
    assert frame_way_out(value) == ""


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_known_and_its_way_out_gives_its_columns(kind: str) -> None:
    """The message's own code, run on the table, gives columns that are read by position."""
    table = TABLES[kind]()
    names = dict.fromkeys(("frame", "table", "batch", "dataset"), table)
    code = frame_way_out(table).removeprefix("For its rows use loaderkit.ArrayDataset(").removesuffix(").")
    assert is_frame(table)
    assert by_position(table) is table
    found = columns_of(table)
    assert found is not None
    for columns in (found, eval(code, names)):
        assert list(columns) == ["a"]
        assert rows_of(columns["a"], 3) == [1, 2, 3]


@pytest.mark.parametrize("kind", UNREAD)
def test_a_table_that_is_not_read_yet_is_known_too(kind: str) -> None:
    table = UNREAD[kind]()
    assert is_frame(table)
    assert columns_of(table) is None
    code = frame_way_out(table).removeprefix("For its rows use loaderkit.ArrayDataset(").removesuffix(").")
    assert rows_of(eval(code, {"frame": table, "dataset": table})["a"], 3) == [1, 2, 3]


def test_a_class_that_answers_every_name_is_no_table() -> None:
    class Answers:
        def __getattr__(self, name: str) -> Any:
            return self

    class DataFrame:  # of nobody's library
        columns = iloc = ()

    for value in (Answers(), DataFrame()):
        assert not is_frame(value)
        assert by_position(value) is value
        assert columns_of(value) is None


def test_looking_imports_no_other_library() -> None:
    code = (
        "import sys; from loaderkit.system.tables import by_position, is_frame; by_position([1]), is_frame([1]);"
        "found = {'pandas', 'polars', 'pyarrow', 'xarray', 'dask'} & set(sys.modules); sys.exit(repr(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
