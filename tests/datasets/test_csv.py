"""CSV files: the records are those of csv.DictReader."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import SIZES, check_laws, check_reads, with_draws
from tier import examples

import loaderkit as lk

TEXTS = ["plain", "with, comma", 'with "quotes"', "two\nlines", "two\r\nlines", "é\u2028\x0bé", "", " ", '"', "\t"]


def write(folder: Path, sizes: list[int], *, quoted: bool = True, delimiter: str = ",") -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for shard, size in enumerate(sizes):
        ids = range(len(rows), len(rows) + size)
        mine = [
            {"id": str(i), "text": TEXTS[i % len(TEXTS)] if quoted else f"t{i}", "last": "x" * (i % 3)} for i in ids
        ]
        with (folder / f"{shard:03}.csv").open("w", newline="", encoding="utf-8-sig" if shard % 2 else "utf-8") as file:
            names = ["id", "text", "last"]
            end = "\n" if shard % 3 else "\r\n"
            writer = csv.DictWriter(file, names, delimiter=delimiter, lineterminator=end)
            writer.writeheader()
            for row in mine:
                writer.writerow(row)
                file.write(end * (shard % 2))
        rows += mine
    return rows


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_the_samples_are_the_records(sizes: list[int], quoted: bool, delimiter: str, tmp_path: Path) -> None:
    wanted = write(tmp_path, sizes, quoted=quoted, delimiter=delimiter)
    data = lk.CsvDataset(tmp_path, delimiter=delimiter)
    check_reads(data, wanted)
    check_reads(lk.CsvDataset(tmp_path, delimiter=delimiter, max_open=1), wanted)
    assert data.shard_sizes.tolist() == sizes
    typed = lk.CsvDataset(tmp_path, ["last", "id"], types={"id": int}, delimiter=delimiter)
    check_reads(typed, [{"last": row["last"], "id": int(row["id"])} for row in wanted])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_laws(sizes: list[int], tmp_path: Path) -> None:
    write(tmp_path, sizes)
    check_laws(lambda: lk.CsvDataset(tmp_path, types={"id": int}, transform=with_draws), lambda row: int(row["id"]))


# Python's writer does not quote a lone carriage return, which readers take for the end of a line.
CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=8)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_text_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], end: str, all_quoted: bool
) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL)
    writer.writerows([("a", "b"), *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(file.getvalue().encode())
    check_reads(lk.CsvDataset(path), [{"a": a, "b": b} for a, b in rows])


def test_one_column_may_be_empty_and_files_may_lack_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a\n""\n\n \nx')
    check_reads(lk.CsvDataset(path), [{"a": ""}, {"a": " "}, {"a": "x"}])
    path.write_bytes(b"1,2\n3,4\n")
    check_reads(lk.CsvDataset(path, header=["x", "y"]), [{"x": "1", "y": "2"}, {"x": "3", "y": "4"}])
    check_reads(lk.CsvDataset(path), [{"1": "3", "2": "4"}])  # the other's index is not taken
    path.write_bytes(b"\t\n\t\n")
    check_reads(lk.CsvDataset(path, header=["x", "y"], delimiter="\t"), [{"x": "", "y": ""}] * 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,text\n0,a\n\n1,b,c\n", r"a\.csv: line 4 \(byte 13\) has 3 fields, wanted 2"),
        (b'id,text\n0,"a\nb"\n1\n', r"a\.csv: line 4 \(byte 16\) has 1 fields, wanted 2"),
        (b"id,text\n0,a\n1,\xff\n", r"a\.csv: line 3 \(byte 12\) is not CSV: 'utf-8' codec"),
        (b"id,text\n0,a\n1,b\rc\n", r"a\.csv: line 3 \(byte 12\) is not CSV"),
        (b"id,text\n0,a\n1," + b"x" * 200_000, r"a\.csv: line 3 \(byte 12\) is not CSV: field larger"),
    ],
)
def test_a_broken_record_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    data = lk.CsvDataset(tmp_path)
    assert len(data) == 2
    assert data[0]["id"] == "0"
    for workers in (0, 1):
        with pytest.raises(lk.ShardError, match=message):
            list(lk.Loader(data, 2, num_workers=workers))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has the header None, wanted names"),
        (b"\n\n", "has the header None, wanted names"),
        (b"a,a\n1,2\n", r"has the header \['a', 'a'\], wanted names, each once"),
        (b'a,b\n1,"2\n3,4\n', r"line 2 \(byte 4\) begins a record that is not CSV: unexpected end of data"),
        (b'a,b\n1,2\n1,"2"x\n', r"line 3 \(byte 8\) begins a record that is not CSV"),
        (b"\xff\xfea\0,\0b\0\n\0", "UTF-16 text"),
        (b"\x1f\x8b\x08\0\n", "compressed with gzip"),
        (b"a\xff,b\n1,2\n", "its header is not CSV"),
    ],
)
def test_what_is_no_csv_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(lk.ShardError, match=rf"a\.csv: {message}"):
        lk.CsvDataset(tmp_path)


def test_a_missing_column_and_a_wrong_type_are_named(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_bytes(b"b,a\n1,2\n")
    (tmp_path / "1.csv").write_bytes(b"a,c,b\n3,0,x\n")
    (tmp_path / "2.csv").write_bytes(b"b,c\n4,0\n")
    data = lk.CsvDataset(tmp_path)
    assert data.__getitems__([0, 1]) == [{"b": "1", "a": "2"}, {"b": "x", "a": "3"}]
    with pytest.raises(lk.ShardError, match=r"2\.csv: lacks the columns \['a'\], has \['b', 'c'\]"):
        data[2]
    with pytest.raises(lk.ShardError, match=r"1\.csv: line 2 \(byte 6\): column 'b' has 'x': could not convert"):
        lk.CsvDataset(tmp_path, ["b"], types={"b": float})[1]


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    write(tmp_path, [1])
    settings: list[tuple[dict[str, Any], str]] = [
        ({"delimiter": "::"}, "delimiter is '::'"),
        ({"columns": "id"}, "columns is 'id', wanted a list"),
        ({"types": {"no": int}}, r"types are given for \['no'\], the columns are"),
    ]
    for setting, message in settings:
        with pytest.raises(ValueError, match=message):
            lk.CsvDataset(tmp_path, **setting)


def test_the_fingerprint_knows_the_columns(tmp_path: Path) -> None:
    write(tmp_path, [9])
    assert lk.CsvDataset(tmp_path).fingerprint() != lk.CsvDataset(tmp_path, ["id"]).fingerprint()
