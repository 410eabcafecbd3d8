"""Reading changes nothing in a folder that loaderkit did not write."""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets_made import arrow_table, json_lines
from drawing import equal
from formats_own import OWN
from images_made import encode, picture
from tars_made import make as make_tar
from tfrecord_made import example, write_records

import loaderkit as lk
from loaderkit.cli.command import main
from loaderkit.datasets.base import read_many
from loaderkit.datasets.shards import index as index_module
from loaderkit.datasets.shards.index import beside_path, index_path
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.files.urls import INDEX_SUFFIX

ROWS = range(12)


def write_tar(path: Path, suffix: str) -> None:
    content = (encode(picture(0), "png"), b'{"a": 1}')[suffix == "json"]
    make_tar(path, [pair for row in ROWS for pair in ((f"{row}.cls", b"%d" % row), (f"{row}.{suffix}", content))])


def write_parquet(path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(arrow_table(ROWS), path, 5)


def write_arrow(path: Path, kind: str) -> None:
    pa = pytest.importorskip("pyarrow")
    table = arrow_table(ROWS)
    with getattr(pa.ipc, f"new_{kind}")(str(path), table.schema) as writer:
        writer.write_table(table, 5)


def write_documents(path: Path) -> None:
    np.arange(60, dtype=np.uint16).tofile(path)
    np.arange(5, 61, 5, dtype="<u8").tofile(f"{path}.index")


def write_hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(24).reshape(12, 2), chunks=(5, 2))


def write_zarr(folder: Path) -> None:
    library = pytest.importorskip("zarr", "3")
    library.open_group(folder, mode="w").create_array("x", data=np.arange(24).reshape(12, 2) + 1, chunks=(5, 2))


def write_safetensors(path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    library.save_file({"x": torch.arange(24).reshape(12, 2)}, path)


def write_pictures(folder: Path) -> None:
    for row in ROWS:
        place = folder / f"class{row % 2}"
        place.mkdir(exist_ok=True)
        (place / f"{row}.png").write_bytes(encode(picture(row), "png"))


def each(suffix: str, write: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Write two shards, one of them in a folder below."""

    def made(folder: Path) -> None:
        (folder / "below").mkdir()
        for name in ("a", "below/b"):
            write(folder / f"{name}.{suffix}")

    return made


def text(content: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(content)


LINES = "".join(json.dumps({"n": row}) + "\n" for row in ROWS)
TABLE = "n,text\n" + "".join(f"{row},x\n" for row in ROWS)
FOREIGN: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "jsonl": (each("jsonl", text(LINES)), lk.JsonlDataset),
    "ndjson": (each("ndjson", text(LINES)), lk.JsonlDataset),
    "csv": (each("csv", text(TABLE)), lk.CsvDataset),
    "tar": (each("tar", partial(write_tar, suffix="json")), lk.TarDataset),
    "tar of pictures": (each("tar", partial(write_tar, suffix="png")), lk.TarDataset),
    "parquet": (each("parquet", write_parquet), lk.ParquetDataset),
    "arrow file": (each("arrow", partial(write_arrow, kind="file")), lk.ParquetDataset),
    "arrow stream": (each("arrow", partial(write_arrow, kind="stream")), lk.ParquetDataset),
    "npy": (each("npy", lambda path: np.save(path, np.arange(24).reshape(12, 2))), lk.NpyDataset),
    "tokens": (
        each("bin", lambda path: np.arange(48, dtype=np.uint16).tofile(path)),
        lambda folder: lk.TokenDataset(folder, length=4, dtype="uint16"),
    ),
    "documents": (each("ds", write_documents), lk.DocumentDataset),
    "tfrecord": (
        each("tfrecord", lambda path: write_records(path, [example(n=[row]) for row in ROWS])),
        lk.TFRecordDataset,
    ),
    "safetensors": (each("safetensors", write_safetensors), lk.SafetensorsDataset),
    "pictures": (write_pictures, lk.ImageFolder),
    "hdf5": (each("h5", write_hdf5), lk.Hdf5Dataset),
    "zarr": (write_zarr, lk.ZarrDataset),
}


def seen(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """All that a folder holds: names, bytes, modes and times. A folder's time tells of a file that came and went."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        content = path.read_bytes() if path.is_file() else b""
        state = path.stat()
        found[str(path.relative_to(folder))] = (content, state.st_mtime_ns, state.st_mode)
    return found


def use(folder: Path, make: Callable[[Path], Any]) -> list[Any]:
    """Do all that reads a dataset; return its samples."""
    data = make(folder)
    samples = [data[row] for row in range(len(data))]
    assert len(samples) >= len(ROWS)
    assert equal(list(read_many(data, range(len(data)))), samples)
    for workers in (0, 2):
        loader = lk.Loader(data, 5, shuffle=True, num_workers=workers, collate_fn=list)
        assert sum(map(len, loader)) == len(data)
    if isinstance(data, ShardedDataset):
        form = {lk.NpyDataset: "npy", lk.TokenDataset: "token", lk.DocumentDataset: "document"}.get(type(data))
        lk.index_shards(data.shards, format=form)
        named = [] if form is None else ["--format", form]
        assert main(["index", str(folder), "--quiet", *named]) == 0
        assert main(["index", str(folder), "--quiet", "--check", *named]) == 0
    return samples


@pytest.fixture(params=["writable", "read-only"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "data"
    made.mkdir()
    yield made
    for path in [made, *made.rglob("*")]:
        path.chmod(0o755)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_read_changes_nothing(name: str, folder: Path, request: pytest.FixtureRequest) -> None:
    write, make = FOREIGN[name]
    write(folder)
    if "read-only" in request.node.name:
        for path in [*folder.rglob("*"), folder]:
            path.chmod(0o555 if path.is_dir() else 0o444)
    before = seen(folder)
    assert len(before) >= 4
    use(folder, make)
    if name not in ("npy", "tokens"):
        assert main(["preview", str(folder), "--samples", "2"]) == 0
    assert seen(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", OWN)
def test_a_read_changes_nothing_that_another_writer_made(name: str, folder: Path) -> None:
    write, make = OWN[name]
    write(folder)
    before = seen(folder)
    data = make(folder)
    samples = [data[row] for row in range(len(data))]
    assert equal(list(read_many(data, range(len(data)))), samples)
    assert sum(map(len, lk.Loader(data, 2, shuffle=True, num_workers=2, collate_fn=list))) == len(data) > 3
    main(["preview", str(folder), "--samples", "2"])
    assert seen(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("change", ["none", "copied", "longer"])
@pytest.mark.parametrize("name", ["jsonl", "csv", "tar", "parquet", "arrow file"])
def test_earlier_indexes_are_read_and_stay(name: str, change: str, tmp_path: Path) -> None:
    """Next to each shard: also those of copies, with another time, and those that fit no longer."""
    write, make = FOREIGN[name]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    folder = tmp_path / "data" / "below"
    shards = [str(path) for path in folder.iterdir()]
    lk.index_shards(shards, beside=True)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [Path(shard).name for shard in shards] + [beside_path(shard).name for shard in shards]
    )
    for shard in map(Path, shards):
        index_path(str(shard), None).unlink()
        if change == "copied":
            os.utime(shard, (1e9, 1e9))
        if change == "longer" and name in ("jsonl", "csv"):
            shard.write_text(shard.read_text() + shard.read_text().splitlines()[-1] + "\n")
    before = seen(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if change != "none" else "error")
        warnings.filterwarnings("ignore", "lance is not fork-safe")
        use(folder, make)
    assert seen(folder) == before
    kept = [index_path(shard, None).exists() for shard in shards]
    assert any(kept) == (change == "copied" or (change == "longer" and name in ("jsonl", "csv")))


@pytest.mark.parametrize("name", [name for name in FOREIGN if name not in ("pictures", "zarr")])
def test_a_home_that_cannot_be_written_is_said_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, make = FOREIGN[name]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    wanted = use(tmp_path / "data", make)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(index_module, "_said", [])
    for where in (str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        monkeypatch.setenv("LOADERKIT_INDEX_DIR", where)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                data = make(tmp_path / "data")
                assert equal([data[row] for row in range(len(data))], wanted)
        texts = [str(one.message) for one in said]
        keeps = name not in ("npy", "tokens", "documents", "hdf5", "safetensors") and where.endswith("file")
        assert len(texts) == keeps, texts
        assert all("Set LOADERKIT_INDEX_DIR to a folder that can be written" in one for one in texts)


def test_without_a_home_data_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    json_lines(tmp_path / "data")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("LOADERKIT_INDEX_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(index_module, "_said", [])
    with pytest.warns(UserWarning, match=r"no home folder for indexes\. Set LOADERKIT_INDEX_DIR"):
        data = lk.JsonlDataset(tmp_path / "data")
    assert data[3]["n"] == 3
    assert not list(tmp_path.rglob(f"*{INDEX_SUFFIX}"))


def test_indexes_lie_next_to_shards_on_request_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    beside = beside_path(str(tmp_path / "a.jsonl"))
    assert main(["index", str(tmp_path)]) == 0
    assert not beside.exists()
    assert main(["index", str(tmp_path), "--beside"]) == 0
    time = beside.stat().st_mtime_ns
    assert main(["index", str(tmp_path), "--beside"]) == 0
    assert beside.stat().st_mtime_ns == time  # a rerun writes nothing
    shutil.copytree(tmp_path, tmp_path / "copy", copy_function=shutil.copy2)
    capsys.readouterr()
    assert main(["index", str(tmp_path / "copy"), "--check"]) == 0  # it travels with the shard
    assert capsys.readouterr().out.endswith("1 shard: 1 fresh; 12 samples\n")
    with pytest.raises(ValueError, match=r"memory://beside/a\.jsonl: is remote, wanted local shards"):
        lk.index_shards(in_memory(LINES), beside=True)


def in_memory(content: str) -> str:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/beside/a.jsonl", content.encode())
    return "memory://beside/a.jsonl"
