"""Data of other tools: named for what it is by every door, and not named after what merely lies next to our files."""

import json
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loaderkit as lk
from loaderkit.cli.command import main
from loaderkit.datasets.formats import find_formats
from loaderkit.files.foreign_formats import FORMATS, OURS, describe

Write = Callable[[Path], None]


def put(path: Path, content: bytes | str | dict[str, Any] = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def rows(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns or {"x": [1, 2]}), path)


def arrow(path: Path, values: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = pa.table({"x": values})
    with pa.ipc.new_stream(str(path), data.schema) as writer:
        writer.write_table(data)


def tar(path: Path, values: list[int], name: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = [{"__key__": f"{name}{value:03}", "cls": value} for value in values]
    folder = path.parent / f".{path.stem}-made"
    lk.write_shards(samples, folder, format="tar", jobs=1)
    next(folder.glob("*.tar")).rename(path)


def mds(folder: Path) -> None:
    put(folder / "index.json", {"version": 2, "shards": [{"format": "mds", "samples": 3}]})
    put(folder / "shard.00000.mds", bytes(30))


def litdata(folder: Path) -> None:
    put(folder / "index.json", {"chunks": [{"filename": "chunk-0-0.bin"}], "config": {"data_format": ["int", "str"]}})
    put(folder / "chunk-0-0.bin", bytes(30))


def lance(folder: Path) -> None:
    put(folder / "_versions" / "1.manifest")
    put(folder / "_transactions" / "0-a.txn")
    put(folder / "data" / "a.lance", b"LANC")


def zarr(name: str, text: str = "{}") -> Write:
    def write(folder: Path) -> None:
        put(folder / name, text)
        put(folder / "c" / "0" / "0", bytes(8))

    return write


def energon(folder: Path) -> None:
    tar(folder / "s_000.tar", [0, 1])
    tar(folder / "s_001.tar", [2, 3])
    put(folder / ".nv-meta" / "split.yaml", "exclude: []\nsplit_parts:\n  train: ['s_000.tar']\n  val: [s_001.tar]\n")


def shar(folder: Path) -> None:
    put(folder / "cuts.000000.jsonl.gz", b"\x1f\x8b")
    tar(folder / "recording.000000.tar", [0, 1])
    tar(folder / "features.000000.tar", [0, 1])


def lerobot(folder: Path) -> None:
    put(folder / "meta" / "info.json", {"codebase_version": "v3.0"})
    rows(folder / "meta" / "tasks.parquet", task=["a"])
    rows(folder / "data" / "chunk-000" / "file-000.parquet")


def dataset_dict(folder: Path) -> None:
    put(folder / "dataset_dict.json", {"splits": ["train", "test"]})
    arrow(folder / "train" / "data-00000-of-00001.arrow", [1, 2, 3])
    arrow(folder / "test" / "data-00000-of-00001.arrow", [4])


def delta(folder: Path) -> None:
    rows(folder / "part-0.parquet")
    put(folder / "_delta_log" / f"{0:020}.json", "{}")


def iceberg(folder: Path) -> None:
    rows(folder / "data" / "a.parquet")
    put(folder / "metadata" / "00000-1.metadata.json", "{}")


def sqlite(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("create table t (x)")
    connection.commit()
    connection.close()


def hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)


def head(content: bytes) -> Write:
    return lambda path: put(path, content)


SAFETENSORS = json.dumps({"x": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}).encode()
# What tfrecord 1.14.6 writes for one example with the integer 5: the length, its checksum, the bytes, theirs.
TFRECORD = bytes.fromhex("0e00000000000000c5e5693f0a0c0a0a0a016112051a030a01052c5d4d26")
FOLDERS: dict[str, tuple[str, Write]] = {
    "mds": ("mds", mds),
    "litdata": ("litdata", litdata),
    "lance": ("lance", lance),
    "zarr 3": ("zarr", zarr("zarr.json")),
    "zarr 2 array": ("zarr", zarr(".zarray")),
    "zarr 2 group": ("zarr", zarr(".zgroup")),
    "energon": ("energon", energon),
    "shar": ("shar", shar),
    "lerobot": ("lerobot", lerobot),
    "dataset_dict": ("dataset_dict", dataset_dict),
    "delta": ("delta", delta),
    "iceberg": ("iceberg", iceberg),
}
FILES: dict[str, tuple[str, Write]] = {
    "a.h5": ("hdf5", hdf5),
    "a.vortex": ("vortex", head(b"VTXF" + bytes(40))),
    "a.tfrecord": ("tfrecord", head(TFRECORD)),
    "a.array_record": (
        "arrayrecord",
        head(bytes.fromhex("83af70d10d884a3f00000000000000004000000000000000") + bytes(40)),
    ),
    "a.db": ("sqlite", sqlite),
    "a.duckdb": ("duckdb", head(bytes(8) + b"DUCK" + bytes(40))),
    "a.safetensors": ("safetensors", head(struct.pack("<Q", len(SAFETENSORS)) + SAFETENSORS + bytes(2))),
}
DOORS: dict[str, Callable[[Path], Any]] = {
    "ParquetDataset": lk.ParquetDataset,
    "TarDataset": lk.TarDataset,
    "JsonlDataset": lk.JsonlDataset,
    "CsvDataset": lk.CsvDataset,
    "NpyDataset": lk.NpyDataset,
    "TokenDataset": lambda path: lk.TokenDataset(path, length=2, dtype="uint16"),
    "ImageFolder": lk.ImageFolder,
    "Loader": lk.Loader,
}
# What a door reads in place, or does not notice as none of its files are there.
OPENS = {("DocumentDataset", "litdata")}
SHOWN = {
    "arrayrecord",
    "hdf5",
    "lance",
    "lerobot",
    "litdata",
    "mds",
    "safetensors",
    "shar",
    "tfrecord",
    "zarr",
}  # by `loaderkit preview`


def test_each_format_of_the_table_is_tried_here() -> None:
    assert {key for key, _ in (*FOLDERS.values(), *FILES.values())} == set(FORMATS)


def test_our_suffixes_are_those_of_our_formats() -> None:
    """But of files that their magic tells: every other dataset names them."""
    found = {suffix for kind in find_formats().values() for suffix in kind.suffixes + kind.shared_suffixes}
    assert set(OURS) == found - {
        *lk.ArrayRecordDataset.suffixes,
        *lk.Hdf5Dataset.suffixes,
        *lk.SafetensorsDataset.suffixes,
        *lk.TFRecordDataset.suffixes,
    }


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_of_another_tool_is_named_by_every_door(case: str, door: str, tmp_path: Path) -> None:
    """The name and the way out, whether the folder itself or the one around it is given."""
    key, write = FOLDERS[case]
    write(tmp_path / "outer" / "it")
    for place in ("outer/it", "outer"):
        with pytest.raises((lk.ShardError, TypeError)) as caught:
            DOORS[door](tmp_path / place)
        assert f"outer/it: is {FORMATS[key].name}" in str(caught.value)
        assert FORMATS[key].way_out in str(caught.value)


@pytest.mark.parametrize("door", [door for door in DOORS if door != "ImageFolder"])
@pytest.mark.parametrize("case", FILES)
def test_a_file_of_another_tool_is_named_by_every_door(case: str, door: str, tmp_path: Path) -> None:
    key, write = FILES[case]
    write(tmp_path / case)
    for place in (tmp_path / case, tmp_path):
        with pytest.raises((lk.ShardError, TypeError)) as caught:
            DOORS[door](place)
        assert f"is {FORMATS[key].name}" in str(caught.value)
        assert FORMATS[key].way_out in str(caught.value)


@pytest.mark.parametrize("case", FILES)
def test_a_file_with_a_wrong_suffix_is_named(case: str, tmp_path: Path) -> None:
    key, write = FILES[case]
    write(tmp_path / "a.parquet")
    with pytest.raises(lk.ShardError, match=f"a.parquet: starts with .* It is {FORMATS[key].name}"):
        lk.ParquetDataset(tmp_path)


@pytest.mark.parametrize("case", [case for case, (key, _) in (FOLDERS | FILES).items() if key not in SHOWN])
def test_preview_names_what_it_can_not_show(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, write = (FOLDERS | FILES)[case]
    write(tmp_path / "of" / case)
    assert main(["preview", str(tmp_path / "of" / case)]) == 1
    said = capsys.readouterr().err
    assert FORMATS[key].name in said
    assert FORMATS[key].way_out in said


@pytest.mark.parametrize("case", [*(case for case in FOLDERS if not FORMATS[FOLDERS[case][0]].misread), *FILES])
def test_our_files_open_next_to_those_of_another_tool(case: str, tmp_path: Path) -> None:
    """A folder is not named after what merely lies next to our files; nor is it if they are of another of our formats."""
    (FOLDERS | FILES)[case][1](tmp_path / "other" / case)
    rows(tmp_path / "a.parquet", x=[1, 2, 3])
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n')
    assert [row["x"] for row in lk.ParquetDataset(tmp_path)] == [1, 2, 3]
    assert len(lk.JsonlDataset(tmp_path)) == 1
    if case != "litdata":  # whose chunks end in .bin
        assert describe(tmp_path) is None
    with pytest.raises(FileNotFoundError, match="no shards at"):
        lk.TarDataset(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ["_delta_log/readme.json", "a/metadata/x.json", "meta/info.json"],
        ["index.json", "dataset_dict.json"],
        ["_versions/1.txt", "a.nv-meta/split.yaml", "cuts.jsonl.gz"],
    ],
)
def test_names_alone_are_no_mark(names: list[str], tmp_path: Path) -> None:
    for name in names:
        put(tmp_path / name, "[1]")
    rows(tmp_path / "a.parquet")
    arrow(tmp_path / "b.arrow", [3])
    tar(tmp_path / "c" / "c.tar", [0])
    assert len(lk.ParquetDataset(tmp_path)) == 3
    assert len(lk.TarDataset(tmp_path)) == 1
    assert describe(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"", b"\0", bytes(200), bytes(range(64)), b"{}" * 20, struct.pack("<Q", 3) + b"[" + bytes(60)]
)
def test_other_bytes_have_no_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    assert describe(tmp_path / "a") is None
    assert describe(tmp_path) is None
    assert describe(tmp_path / "none") is None
    assert describe("s3://bucket/a") is None


def test_litdata_chunks_are_no_bare_tokens(tmp_path: Path) -> None:
    litdata(tmp_path)
    with pytest.raises(
        lk.ShardError, match=r"litdata, as index.json shows: the head of chunk-0-0.bin .* lk.DocumentDataset"
    ):
        lk.TokenDataset(tmp_path, length=2, dtype="uint16")
    put(tmp_path / "index.json", {"mine": 1})
    assert len(lk.TokenDataset(tmp_path, length=2, dtype="uint16")) == 7
