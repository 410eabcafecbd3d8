"""HDF5 and Zarr: the rows that the formats' own readers give, and a chunk is decoded once for all its rows."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import equal
from servers import run_s3
from shards import check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.cli.command import main

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr", "3")
FIXTURES = Path(__file__).parents[2] / "fixtures" / "chunked"
VALUES: dict[str, list[dict[str, Any]]] = json.loads((FIXTURES / "values.json").read_text())
MAKE: dict[str, Callable[..., Any]] = {"h5": lk.Hdf5Dataset, "zarr": lk.ZarrDataset}


def opened(name: str, *args: Any, **settings: Any) -> Any:
    return MAKE[name.rpartition(".")[2]](FIXTURES / name, *args, **settings)


def plain(value: Any) -> Any:
    """Return a sample as JSON has it."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return list(map(plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def write_hdf5(path: Path, **arrays: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, chunks=(3, *np.shape(array)[1:]))
    return path


def write_zarr(path: Path, **arrays: Any) -> Path:
    group = zarr.open_group(path, mode="w")
    for name, array in arrays.items():
        group.create_array(name, data=np.asarray(array), chunks=(3, *np.shape(array)[1:]), fill_value=99)
    return path


WRITE = {"h5": write_hdf5, "zarr": write_zarr}


def make(tmp_path: Path, suffix: str, **arrays: Any) -> Any:
    WRITE[suffix](tmp_path / f"a.{suffix}", **arrays)
    return MAKE[suffix](tmp_path / f"a.{suffix}")


@pytest.mark.parametrize("name", VALUES)
def test_each_store_has_the_values_that_its_own_reader_gives(name: str) -> None:
    data = opened(name)
    assert len(data) == 11
    assert plain([data[row] for row in range(11)]) == VALUES[name]
    assert [list(data[0]), data[0]["x"].dtype, data[0]["x"].shape] == [list(VALUES[name][0]), np.float32, (2, 3)]
    check_reads(data, [data[row] for row in range(11)])
    batch = next(iter(lk.Loader(data, 11)))
    assert {key: value if key == "text" else value.tolist() for key, value in batch.items()} == {
        key: [row[key] for row in VALUES[name]] for key in VALUES[name][0]
    }


@pytest.mark.parametrize("bytes_kept", [0, 100, 1 << 20])
@pytest.mark.parametrize("name", VALUES)
def test_what_is_kept_of_chunks_changes_nothing(name: str, bytes_kept: int) -> None:
    """Also if a chunk is larger than what may be kept."""
    data = opened(name, chunk_cache_bytes=bytes_kept)
    for rows in ([3], [10, 0, 3, 3, 7], [*reversed(range(11))], [], [0, 1, 2, 3]):
        assert plain(data.__getitems__(rows)) == [VALUES[name][row] for row in rows]
    assert plain(data.read_columns(np.array([4, 0]))["x"]) == [VALUES[name][4]["x"], VALUES[name][0]["x"]]


@pytest.mark.parametrize("name", ["rows.h5", "v2.zarr", "sharded.zarr"])
def test_the_laws_hold(name: str) -> None:
    rows = [plain(opened(name)[row]) for row in range(11)]
    check_laws(lambda: opened(name, transform=with_draws), lambda sample: rows.index(plain(sample)))


@pytest.mark.parametrize("suffix", WRITE)
def test_a_chunk_is_decoded_once_for_all_its_rows_of_a_batch(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once an epoch, if what is kept has room for it."""
    data = make(tmp_path, suffix, x=np.arange(300).reshape(100, 3))
    kind = {"h5": h5py.Dataset, "zarr": zarr.Array}[suffix]
    reads: list[Any] = []
    read = kind.__getitem__
    monkeypatch.setattr(kind, "__getitem__", lambda array, key: reads.append(key) or read(array, key))
    rows = [7, 98, 6, 8, 99, 7, 0]
    assert [int(row["x"][0]) // 3 for row in data.__getitems__(rows)] == rows
    assert sorted(key.start for key in reads) == [0, 6, 96, 99]
    reads.clear()
    seen = [int(x[0]) // 3 for batch in lk.Loader(data, 8, shuffle=True) for x in batch["x"]]
    assert sorted(seen) == list(range(100))
    assert seen != sorted(seen)
    assert len(reads) == 34 - 4


@pytest.mark.parametrize("suffix", WRITE)
def test_shards_of_the_order_are_whole_chunks_of_the_largest_column(suffix: str, tmp_path: Path) -> None:
    data = make(tmp_path, suffix, x=np.zeros((200, 5)), y=np.arange(200))
    assert data.shard_sizes.tolist() == [66, 66, 66, 2]
    order = lk.Loader(data, 8, shuffle=True).indices(0, 0)
    assert len(set(order.tolist())) == 8


@pytest.mark.parametrize("dtype", ["bool", "u1", ">i4", "u8", "f2", "<f8", ">f4", "c8", "S3", "U3"])
@pytest.mark.parametrize("suffix", WRITE)
def test_each_type_of_values_is_kept(suffix: str, dtype: str, tmp_path: Path) -> None:
    values = np.array([0, 1, 0, 0, 1], dtype=dtype if dtype[0] not in "SU" else f"{dtype[0]}3")
    if suffix == "h5" and dtype == "U3":
        values = values.astype("S3")
    kept = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2) if suffix == "zarr" else None
    if kept is None:
        data = make(tmp_path, suffix, x=values)
    else:
        kept.create_array("x", data=values, chunks=(2,))
        data = lk.ZarrDataset(tmp_path / "a.zarr", missing="fill")
    found = [data[row]["x"] for row in range(5)]
    if values.dtype.kind in "SU":
        assert found == values.tolist()
    else:
        assert equal(found, list(values.astype(values.dtype.newbyteorder("="))))


@pytest.mark.parametrize("suffix", WRITE)
def test_what_has_no_rows_in_common_is_refused_by_name(suffix: str, tmp_path: Path) -> None:
    store = WRITE[suffix](tmp_path / f"a.{suffix}", x=np.arange(5), y=np.arange(4))
    with pytest.raises(lk.ShardError, match=r"'x' has 5, 'y' has 4 rows; wanted columns of one length.*columns="):
        MAKE[suffix](store)
    assert MAKE[suffix](store, ["y"])[3] == {"y": 3}
    with pytest.raises(lk.ShardError, match=r"has the (arrays|datasets) \['x', 'y'\].* wanted \['z'\]"):
        MAKE[suffix](store, ["z"])
    store = WRITE[suffix](tmp_path / f"b.{suffix}", **{"in/x": np.arange(5)})
    with pytest.raises(lk.ShardError, match="group/name"):
        MAKE[suffix](store)
    assert MAKE[suffix](store, ["in/x"])[3] == {"in/x": 3}


def test_values_that_are_neither_numbers_nor_texts_are_refused_by_name(tmp_path: Path) -> None:
    store = write_hdf5(tmp_path / "a.h5", x=np.zeros(3, dtype=[("a", "i4"), ("b", "f4")]), y=np.arange(3))
    with pytest.raises(lk.ShardError, match=r"a.h5: 'x' holds .* wanted numbers, texts or bytes.*columns="):
        lk.Hdf5Dataset(store)
    with h5py.File(store, "a") as file:
        file["ref"] = np.array([file["y"].ref] * 3, dtype=h5py.ref_dtype)
    with pytest.raises(lk.ShardError, match=r"a.h5: 'ref' holds references"):
        lk.Hdf5Dataset(store, ["ref"])


@pytest.mark.parametrize("suffix", WRITE)
def test_other_data_have_another_fingerprint(suffix: str, tmp_path: Path) -> None:
    found = {make(tmp_path, suffix, x=np.arange(5)).fingerprint(), make(tmp_path, suffix, x=np.arange(6)).fingerprint()}
    found.add(make(tmp_path, suffix, y=np.arange(5)).fingerprint())
    found.add(make(tmp_path, suffix, x=np.arange(5.0)).fingerprint())
    found.add(make(tmp_path, suffix, x=np.zeros((5, 2), int)).fingerprint())
    assert len(found) == 5
    (tmp_path / f"a.{suffix}").rename(tmp_path / f"b.{suffix}")
    assert MAKE[suffix](tmp_path / f"b.{suffix}").fingerprint() not in found
    (tmp_path / "moved").mkdir()
    (tmp_path / f"b.{suffix}").rename(tmp_path / "moved" / f"a.{suffix}")
    assert MAKE[suffix](tmp_path / "moved" / f"a.{suffix}").fingerprint() in found


@pytest.mark.parametrize("name", VALUES)
def test_preview_shows_the_first_rows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", str(FIXTURES / name), "--samples", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{type(opened(name)).__name__}: 11 samples in 1 shard\n")
    assert "float32  (2, 3)" in said


def test_a_store_that_is_one_array_gives_its_rows(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", data=np.arange(1, 13).reshape(6, 2), chunks=(4, 2))
    data = lk.ZarrDataset(tmp_path / "a.zarr")
    check_reads(data, [array[row] for row in range(6)])
    assert equal(next(iter(lk.Loader(data, 6))).numpy(), array[:])
    assert equal(lk.ZarrDataset(FIXTURES / "v3.zarr", path="x")[4], opened("v3.zarr")[4]["x"])
    with pytest.raises(lk.ShardError, match=r"is one array, wanted a group of arrays for columns=\['x'\]"):
        lk.ZarrDataset(tmp_path / "a.zarr", ["x"])


def test_several_files_are_one_dataset(tmp_path: Path) -> None:
    for number, rows in ((0, 5), (2, 7)):
        write_hdf5(tmp_path / f"{number}.h5", x=np.arange(rows) + 10 * number, t=[f"t{row}" for row in range(rows)])
    data = lk.Hdf5Dataset([tmp_path / "0.h5", tmp_path / "2.h5"])
    wanted = [*range(5), *range(20, 27)]
    check_reads(data, [{"t": f"t{x % 10}", "x": np.int64(x)} for x in wanted])
    assert data.read_columns(np.array([11, 0, 5]))["t"] == ["t6", "t0", "t0"]
    assert [batch["x"].tolist() for batch in lk.Loader(data, 12)] == [wanted]
    assert data.place(6).row == 1
    write_hdf5(tmp_path / "3.h5", x=np.arange(4.0), t=["t"] * 4)
    with pytest.raises(lk.ShardError, match=r"3.h5: has the columns .*float64.*wanted those of .*0.h5.*int64"):
        lk.Hdf5Dataset([tmp_path / "0.h5", tmp_path / "3.h5"])


@pytest.mark.parametrize("chunks", [None, True])
def test_hdf5_is_read_by_url(chunks: Any, tmp_path: Path) -> None:
    """By ranges, and from a copy."""
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/chunked/rows.h5", (FIXTURES / "rows.h5").read_bytes())
    storage = lk.Storage(cache_dir=tmp_path / "copies" if chunks else None)
    data = lk.Hdf5Dataset("memory://chunked/rows.h5", storage=storage)
    assert plain([data[row] for row in range(11)]) == VALUES["rows.h5"]
    fsspec.filesystem("memory").pipe_file("/chunked/virtual.h5", (FIXTURES / "virtual.h5").read_bytes())
    with pytest.raises(lk.ShardError, match="virtual dataset, whose parts are not found by URL"):
        lk.Hdf5Dataset("memory://chunked/virtual.h5", storage=storage)


def test_zarr_is_read_by_url_and_from_a_store(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    for path in (FIXTURES / "sharded.zarr").rglob("*"):
        if path.is_file():
            name = path.relative_to(FIXTURES).as_posix()
            fsspec.filesystem("memory").pipe_file(f"/chunked/{name}", path.read_bytes())
    data = lk.ZarrDataset("memory://chunked/sharded.zarr")
    assert plain([data[row] for row in range(11)]) == VALUES["sharded.zarr"]
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, name="x", data=np.arange(1, 6), chunks=(2,))
    data = lk.ZarrDataset(zarr.storage.ZipStore(tmp_path / "a.zip", mode="r"))
    assert [int(data[row]["x"]) for row in range(5)] == [1, 2, 3, 4, 5]


def test_forked_workers_read_zarr_from_an_object_store(tmp_path: Path) -> None:
    """Each opens the store itself: the parent's event loop and sockets are not theirs."""
    with run_s3(tmp_path) as options:
        files = pytest.importorskip("fsspec").filesystem("s3", **options)
        files.mkdir("chunked")
        for path in (FIXTURES / "sharded.zarr").rglob("*"):
            if path.is_file():
                files.pipe_file(f"chunked/{path.relative_to(FIXTURES).as_posix()}", path.read_bytes())
        data = lk.ZarrDataset("s3://chunked/sharded.zarr", ["text", "y"], storage_options=options)
        assert data[3]["text"] == VALUES["sharded.zarr"][3]["text"]
        batches = lk.Loader(data, 6, shuffle=True, num_workers=2, multiprocessing_context="fork")
        assert sorted(text for batch in batches for text in batch["text"]) == sorted(
            row["text"] for row in VALUES["sharded.zarr"]
        )


def test_chunks_that_the_store_lacks_are_said_with_their_number(tmp_path: Path) -> None:
    """They may be lost, or of nothing but the fill value: the store does not tell."""
    for version, shards in ((2, None), (3, None), (3, (6, 4))):
        store = tmp_path / f"{version}{shards}.zarr"
        group = zarr.open_group(store, mode="w", zarr_format=version)
        group.create_array("x", data=np.ones((12, 4)), chunks=(3, 2), shards=shards)
        group.create_array("y", data=np.array([0] * 6 + [1] * 6), chunks=(3,))
        said = r"not in the store, so their rows are the fill value: 2 of 4 chunks of 'y' \(fill value 0\)"
        with pytest.warns(UserWarning, match=f"ZarrDataset: .*zarr: {said}.*missing='fill'"):
            lk.ZarrDataset(store)
        with pytest.raises(lk.ShardError, match=f"{said}. Restore them"):
            lk.ZarrDataset(store, missing="error")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(lk.ZarrDataset(store, ["x"])) == len(lk.ZarrDataset(store, missing="fill")) == 12
        lost = next(
            path for path in (store / "x").rglob("*") if path.is_file() and not path.name.startswith((".z", "zarr"))
        )
        lost.unlink()
        unit = "1 of 2 shards" if shards else "1 of 8 chunks"
        with pytest.raises(lk.ShardError, match=f"{unit} of 'x'.*Restore them"):
            lk.ZarrDataset(store, ["x"], missing="error")


@pytest.mark.parametrize("lost", ["file", "name", "part of a part"])
def test_a_virtual_dataset_without_a_part_is_refused(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 gives fill values, or reads a file of that name in the working folder."""
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for number in range(2):
        write_hdf5(tmp_path / "data" / f"{number}.h5", x=np.full(4, number))
    layout = h5py.VirtualLayout((4,), "i8")
    layout[:] = h5py.VirtualSource("1.h5", "x", (4,))
    with h5py.File(tmp_path / "data" / "inner.h5", "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=-1)
    layout = h5py.VirtualLayout((8,), "i8")
    layout[:4] = h5py.VirtualSource("0.h5", "x", (4,))
    layout[4:] = h5py.VirtualSource("inner.h5", "x", (4,))
    path = tmp_path / "data" / "all.h5"
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=-1)
    assert [int(row["x"]) for row in lk.Hdf5Dataset(path)] == [0] * 4 + [1] * 4
    gone = {"file": "0.h5", "name": "0.h5", "part of a part": "1.h5"}[lost]
    (tmp_path / "data" / gone).rename(tmp_path / "here" / gone)
    if lost == "name":
        write_hdf5(tmp_path / "data" / gone, y=np.arange(4))
    with pytest.raises(
        lk.ShardError, match=rf"'/x' has parts in .*{gone}, which .*HDF5 would give fill values.*missing='fill'"
    ):
        lk.Hdf5Dataset(path)
    assert len(lk.Hdf5Dataset(path, missing="fill")) == 8


@pytest.mark.parametrize("cut", [10, 700, 2000])
def test_a_damaged_file_is_named(cut: int, tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", x=np.random.default_rng(0).random(300))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(lk.ShardError, match=r"a.h5: not a whole HDF5 file"):
        lk.Hdf5Dataset(path)
    store = write_zarr(tmp_path / "a.zarr", x=np.random.default_rng(0).random(300))
    chunk = store / "x" / "c" / "5"
    chunk.write_bytes(chunk.read_bytes()[: cut % 7])
    data = lk.ZarrDataset(store)
    assert data[14]["x"] > 0
    with pytest.raises(lk.ShardError, match=r"a.zarr: rows 15 to 17 of 'x' can't be read"):
        data[15]
    with pytest.raises(lk.ShardError, match="nothing: not a Zarr store"):
        lk.ZarrDataset(tmp_path / "nothing")


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ZarrDataset: missing is 'no', wanted one of 'warn', 'error', 'fill'"):
        opened("v3.zarr", missing="no")
    with pytest.raises(ValueError, match=r"Hdf5Dataset: missing is 'warn', wanted one of 'error', 'fill'"):
        opened("rows.h5", missing="warn")
