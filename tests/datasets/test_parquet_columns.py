"""Columns of several files: those in folders' names come back, and those that differ are found when the dataset is opened."""

import itertools
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from shards import check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.datasets.arrow.hive import hive_columns

VALUES = ["01", "1", "2", "", "a b", "é/:=%", "__HIVE_DEFAULT_PARTITION__", "2024-01-01", "true", "null"]
INT, FLOAT, TEXT = pa.int64(), pa.float64(), pa.string()


def write(path: Path, suffix: str = "parquet", **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = pa.table(columns)
    if suffix == "parquet":
        pq.write_table(data, path.with_suffix(".parquet"), row_group_size=2)
    else:
        with pa.ipc.new_file(str(path.with_suffix(".arrow")), data.schema) as writer:
            writer.write_table(data, max_chunksize=2)


def escaped(value: str) -> str:
    return "".join(f"%{byte:02X}" for byte in value.encode()) if set(value) & set("/:=% é") else value


def hive(folder: Path, suffix: str = "parquet") -> list[dict[str, Any]]:
    """Files in two levels of folders, and the rows in the order of the files."""
    rows = []
    for number, value in enumerate(VALUES):
        write(folder / f"k={escaped(value)}" / f"n={number:02}" / "part", suffix, x=[3 * number + i for i in range(3)])
        text = None if value == "__HIVE_DEFAULT_PARTITION__" else value
        rows.append([{"x": 3 * number + i, "k": text, "n": f"{number:02}"} for i in range(3)])
    names = [f"k={escaped(value)}/" for value in VALUES]
    return [row for _, part in sorted(zip(names, rows, strict=True), key=lambda pair: pair[0]) for row in part]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("columns", [None, ["x", "k"], ["k"], ["n", "x"], ["x"], ["n", "k"]])
def test_columns_in_names_of_folders_come_back_as_texts(columns: list[str] | None, suffix: str, tmp_path: Path) -> None:
    """By rows, by batches and by `columns=`, whether the folder, a glob or the files are given."""
    rows = hive(tmp_path, suffix)
    wanted = [{name: row[name] for name in columns or ["x", "k", "n"]} for row in rows]
    glob = f"{tmp_path}/*/*/*.{suffix}"
    for urls in (tmp_path, glob, sorted(map(str, tmp_path.rglob(f"*.{suffix}")))):
        data = lk.ParquetDataset(urls, columns)  # type: ignore[arg-type]
        check_reads(data, wanted)
        assert [list(row) for row in data] == [list(row) for row in wanted]
    full = [index for index, row in enumerate(rows) if row["k"] is not None]
    batch = lk.ParquetDataset(tmp_path, columns).read_batch(np.array(full))
    for name, values in batch.items():
        assert list(values) == [rows[index][name] for index in full]


def test_the_laws_hold_for_columns_in_names_of_folders(tmp_path: Path) -> None:
    rows = hive(tmp_path)
    places = [row["x"] for row in rows]
    check_laws(lambda: lk.ParquetDataset(tmp_path, transform=with_draws), lambda row: places.index(row["x"]))


def test_they_are_those_that_pyarrow_finds(tmp_path: Path) -> None:
    """With the type of texts, which pyarrow takes if it is told so."""
    hive(tmp_path)
    kinds = pads.partitioning(pa.schema([("k", TEXT), ("n", TEXT)]), flavor="hive")
    theirs = pads.dataset(tmp_path, partitioning=kinds, exclude_invalid_files=True).to_table().to_pylist()
    assert sorted(theirs, key=lambda row: row["x"]) == sorted(lk.ParquetDataset(tmp_path), key=lambda row: row["x"])


def test_a_remote_folder_has_the_same_columns(tmp_path: Path) -> None:
    rows = hive(tmp_path / "t")
    files = fsspec.filesystem("memory")
    files.store.clear()
    for path in (tmp_path / "t").rglob("*.parquet"):
        files.pipe(f"/bucket/{path.relative_to(tmp_path).as_posix()}", path.read_bytes())
    for cache in (None, tmp_path / "cache"):
        settings = {"storage": lk.Storage(cache_dir=cache), "index_dir": tmp_path / "index"}
        check_reads(lk.ParquetDataset("memory://bucket/t", **settings), rows)  # type: ignore[arg-type]


def test_the_files_own_column_wins(tmp_path: Path) -> None:
    write(tmp_path / "k=01" / "a", x=[1, 2], k=["7", "8"])
    write(tmp_path / "k=02" / "a", x=[3])
    data = lk.ParquetDataset(tmp_path)
    assert list(data) == [{"x": 1, "k": "7"}, {"x": 2, "k": "8"}, {"x": 3, "k": "02"}]
    write(tmp_path / "k=02" / "a", x=[3], k=[2])
    with pytest.raises(lk.ShardError, match=r"k=02/a.parquet: column 'k' is int64, in .*k=01/a.parquet it is string"):
        lk.ParquetDataset(tmp_path)


def test_a_folder_without_the_column_is_named(tmp_path: Path) -> None:
    write(tmp_path / "k=1" / "a", x=[1])
    write(tmp_path / "z" / "a", x=[2])
    with pytest.raises(lk.ShardError, match=r"z/a.parquet: lacks the column 'k' \(string\), .*columns=\['x'\]"):
        lk.ParquetDataset(tmp_path)
    assert [row["x"] for row in lk.ParquetDataset(tmp_path, ["x"])] == [1, 2]


def test_the_values_are_in_the_fingerprint_and_the_place_is_not(tmp_path: Path) -> None:
    for name, values in {"one": ["1", "2"], "two": ["1", "3"], "lr=0.1/same": ["1", "2"]}.items():
        for value in values:
            write(tmp_path / name / f"k={value}" / "a", x=[1])
    one, two, same = (lk.ParquetDataset(tmp_path / name) for name in ("one", "two", "lr=0.1/same"))
    assert one.fingerprint() == same.fingerprint() != two.fingerprint()
    assert list(one) == list(same)
    narrow = [lk.ParquetDataset(tmp_path / name, ["x"]).fingerprint() for name in ("one", "two")]
    assert narrow == ["['x'] parquet-1 a.parquet:1, a.parquet:1"] * 2  # as before the columns came back


@pytest.mark.parametrize(
    ("shard", "wanted"),
    [
        ("a.parquet", {}),
        ("k=1.parquet", {}),
        ("/t/k=1/a.parquet", {"k": "1"}),
        ("/lr=0.1/data/b=2/k=1/a.parquet", {"b": "2", "k": "1"}),
        ("s3://bucket/t/k=a%20b/a.parquet", {"k": "a b"}),
        ("/t/=1/a.parquet", {}),
        ("/t/k=/a.parquet", {"k": ""}),
        ("/t/k=a=b/a.parquet", {"k": "a=b"}),
    ],
)
def test_which_folders_are_columns(shard: str, wanted: dict[str, str]) -> None:
    assert hive_columns(shard) == wanted
    assert list(hive_columns(shard)) == list(wanted)


SAME = [
    (pa.int8(), INT),
    (pa.uint8(), pa.uint64()),
    (pa.float32(), FLOAT),
    (TEXT, pa.large_string()),
    (TEXT, pa.dictionary(pa.int8(), TEXT)),
    (TEXT, pa.string_view()),
    (pa.binary(), pa.large_binary()),
    (pa.binary(), pa.binary_view()),
    (pa.list_(INT), pa.large_list(INT)),
    (pa.decimal128(5, 2), pa.decimal128(9, 2)),
    (pa.timestamp("ms"), pa.timestamp("us")),
    (pa.date32(), pa.date64()),
    (pa.struct([("a", INT), ("b", TEXT)]), pa.struct([pa.field("b", TEXT, nullable=False), ("a", pa.int32())])),
    (pa.list_(pa.struct([("a", INT)])), pa.list_(pa.field("element", pa.struct([("a", INT)])))),
    (INT, pa.null()),
    (pa.list_(TEXT), pa.list_(pa.null())),
    (pa.map_(TEXT, INT), pa.map_(TEXT, INT)),
]
OTHER = [
    (INT, FLOAT),
    (INT, TEXT),
    (INT, pa.bool_()),
    (INT, pa.uint64()),
    (INT, pa.list_(INT)),
    (INT, pa.decimal128(5, 2)),
    (TEXT, pa.binary()),
    (TEXT, pa.date32()),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us"), pa.date32()),
    (pa.list_(pa.int32()), pa.list_(INT)),
    (pa.list_(INT), pa.list_(TEXT)),
    (pa.list_(INT), pa.list_(INT, 2)),
    (pa.list_(INT, 2), pa.list_(INT, 3)),
    (pa.fixed_shape_tensor(INT, [2, 2]), pa.fixed_shape_tensor(INT, [4])),
    (pa.struct([("a", INT)]), pa.struct([("a", TEXT)])),
    (pa.struct([("a", INT)]), pa.struct([("a", INT), ("b", INT)])),
    (pa.map_(TEXT, INT), pa.map_(TEXT, TEXT)),
]


def files_of(folder: Path, *kinds: pa.DataType) -> None:
    for number, kind in enumerate(kinds):
        empty = pa.array([None, None], getattr(kind, "storage_type", kind))
        column = pa.ExtensionArray.from_storage(kind, empty) if hasattr(kind, "storage_type") else empty
        write(folder / f"{number}", "arrow", x=column, y=[number, number])


@pytest.mark.parametrize("kinds", SAME, ids=str)
def test_types_of_the_same_values_are_one_column(kinds: tuple[pa.DataType, pa.DataType], tmp_path: Path) -> None:
    for number, order in enumerate((kinds, kinds[::-1])):
        files_of(tmp_path / str(number), *order)
        assert [row["y"] for row in lk.ParquetDataset(tmp_path / str(number))] == [0, 0, 1, 1]


@pytest.mark.parametrize("first", [TEXT, pa.string_view(), pa.large_string()], ids=str)
@pytest.mark.parametrize("second", [TEXT, pa.string_view(), pa.large_string()], ids=str)
def test_texts_of_any_layout_are_in_one_batch(first: pa.DataType, second: pa.DataType, tmp_path: Path) -> None:
    for number, kind in enumerate((first, second)):
        texts = [f"a text of some length {number}", "b", "c"]
        write(tmp_path / f"{number}", "arrow", x=pa.array(texts, kind))
    rows = [row["x"] for row in lk.ParquetDataset(tmp_path)]
    assert rows[::3] == ["a text of some length 0", "a text of some length 1"]
    assert lk.ParquetDataset(tmp_path).read_batch(np.arange(6)[::-1])["x"] == rows[::-1]


@pytest.mark.parametrize("kinds", OTHER, ids=str)
def test_types_of_other_values_are_found_at_the_open(kinds: tuple[pa.DataType, pa.DataType], tmp_path: Path) -> None:
    """Each time, with the file, the column, both types and the way out."""
    for number, order in enumerate((kinds, kinds[::-1])):
        folder = tmp_path / str(number)
        files_of(folder, *order)
        for _ in range(2):
            with pytest.raises(lk.ShardError) as caught:
                lk.ParquetDataset(folder)
            said = (
                f"1.arrow: column 'x' is {order[1]}, in {folder}/0.arrow it is {order[0]}. Leave it out: columns=['y']"
            )
            assert said in str(caught.value)
        assert [row["y"] for row in lk.ParquetDataset(folder, ["y"])] == [0, 0, 1, 1]


COLUMNS = [["a", "b"], ["b", "a"], ["a"], ["b"], ["a", "c"], ["a", "b", "c"], ["c"]]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(COLUMNS, COLUMNS)))
def test_missing_added_and_renamed_columns_are_found_at_the_open(
    first: list[str], second: list[str], tmp_path: Path
) -> None:
    for number, names in enumerate((first, second)):
        write(tmp_path / str(number), **{name: [number] for name in names})
    if set(first) == set(second):
        assert [list(row) for row in lk.ParquetDataset(tmp_path)] == [first, first]
        return
    with pytest.raises(lk.ShardError) as caught:
        lk.ParquetDataset(tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/1.parquet: ")
    for name in set(first) ^ set(second):
        assert f"'{name}' (int64)" in said
    both = [name for name in first if name in second]
    assert f"columns={both}" in said
    if both:
        assert [list(row) for row in lk.ParquetDataset(tmp_path, both)] == [both, both]


def test_files_that_were_indexed_one_by_one_are_compared_when_they_are_first_used(tmp_path: Path) -> None:
    write(tmp_path / "0", x=[1, 2])
    write(tmp_path / "1", x=[0.5])
    assert lk.index_shards(tmp_path, jobs=1) == 3
    data = lk.ParquetDataset(tmp_path)
    assert data[1] == {"x": 2}
    with pytest.raises(lk.ShardError, match=r"1.parquet: column 'x' is double, in .*0.parquet it is int64"):
        data[2]


def test_files_without_rows_have_any_columns(tmp_path: Path) -> None:
    write(tmp_path / "0", x=[1])
    write(tmp_path / "1", y=pa.array([], TEXT))
    assert list(lk.ParquetDataset(tmp_path)) == [{"x": 1}]
