"""VARIANT columns of Parquet files: the values that the writer's own reader gives, and an error for broken ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from plain_values import plain
from shards import check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.datasets.arrow.variant import decode_variant

pytest.importorskip("pyarrow")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "variant"
VALUES: dict[str, list[dict[str, Any]]] = json.loads((FIXTURES / "values.json").read_text())


@pytest.mark.parametrize("name", VALUES)
def test_each_row_has_the_value_that_its_own_reader_gives(name: str) -> None:
    data = lk.ParquetDataset(FIXTURES / f"{name}.parquet")
    assert len(data) == len(VALUES[name]) >= 4
    assert [plain(row) for row in data] == VALUES[name]
    check_reads(data, list(data))


def test_files_with_other_typed_values_are_one_dataset(tmp_path: Path) -> None:
    for path in FIXTURES.glob("*.parquet"):
        shutil.copy(path, tmp_path / path.name)
    wanted = [row for name in sorted(VALUES) for row in VALUES[name]]
    data = lk.ParquetDataset(tmp_path)
    assert [plain(row) for row in data] == wanted
    rows = [json.dumps(row, sort_keys=True) for row in wanted]
    check_laws(
        lambda: lk.ParquetDataset(tmp_path, transform=with_draws),
        lambda row: rows.index(json.dumps(plain(row), sort_keys=True)),
    )
    assert [plain(row) for row in lk.ParquetDataset(tmp_path, ["v"])] == [{"v": row["v"]} for row in wanted]


def test_structs_that_only_look_alike_stay_structs(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [{"v": {"metadata": b"\1\0\0", "value": b"\x0c\x01"}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert list(lk.ParquetDataset(tmp_path)) == rows


NAMES = b"\x01\x01\x00\x01a"


@pytest.mark.parametrize(
    ("metadata", "value"),
    [
        (b"", b"\x0c\x01"),
        (b"\x01", b"\x0c\x01"),
        (b"\x01\xff\x00", b"\x0c\x01"),
        (NAMES, b""),
        (NAMES, b"\x0c"),
        (NAMES, b"\x10\x01"),
        (NAMES, b"\xfc"),
        (NAMES, b"\x11tex"),
        (NAMES, b"\x05\xff"),
        (NAMES, b"\x40\xff\xff\xff\xff"),
        (NAMES, b"\x02\x01\x05\x00\x02\x0c\x01"),
        (NAMES, b"\x02\x01\x00\x09\x02\x0c\x01"),
        (NAMES, b"\x03\x01\x00"),
        (NAMES, b"\x2c\xff\xff\xff\x7f"),
        (NAMES, b"\x03\x01\x00\x00"),
    ],
    ids=range(15),
)
def test_broken_values_are_an_error(metadata: bytes, value: bytes) -> None:
    with pytest.raises(ValueError, match=r"VARIANT|codec"):
        decode_variant({"metadata": metadata, "value": value})


def test_lists_in_too_many_lists_are_an_error() -> None:
    nested = b"\x0c\x01"
    for _ in range(2000):
        nested = b"\x0f\x01" + bytes(4) + len(nested).to_bytes(4, "little") + nested
    with pytest.raises(ValueError, match="a broken VARIANT value: RecursionError"):
        decode_variant({"metadata": NAMES, "value": nested})
