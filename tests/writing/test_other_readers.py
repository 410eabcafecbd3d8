"""What is written is a plain dataset to other tools: each reads all of it, equal, by the name of the folder."""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shards_written import as_earlier, contents, folder_index, manifest, side

import loaderkit as lk
from loaderkit.datasets.shards.folder_index import FOLDER_INDEX
from loaderkit.writing.manifest import MANIFEST

ROWS = [{"cls": row, "txt": f"é{row}"} for row in range(50)]


def write(folder: Path, form: str, rows: Any = ROWS) -> Path:
    lk.write_shards(rows, folder, format=form, samples_per_shard=20)
    return folder


def by_pyarrow(folder: Path) -> Any:
    return pytest.importorskip("pyarrow.dataset").dataset(folder).to_table().to_pylist()


def by_pandas(folder: Path) -> Any:
    return pytest.importorskip("pandas").read_parquet(folder).to_dict("records")


def by_polars(folder: Path) -> Any:
    return pytest.importorskip("polars").read_parquet(folder).to_dicts()


def by_polars_lazily(folder: Path) -> Any:
    return pytest.importorskip("polars").scan_parquet(folder).collect().to_dicts()


def by_hugging_face(folder: Path) -> Any:
    """The library finds the files itself, and then takes the format that most of them have."""
    return [without_key(row) for row in load_dataset(folder, folder.parent / "cache")["train"]]


def by_hugging_face_named(folder: Path) -> Any:
    form = {".parquet": "parquet", ".tar": "webdataset"}[next(folder.iterdir()).suffix]
    return [without_key(row) for row in load_dataset(form, folder.parent / "cache", data_dir=str(folder))["train"]]


def load_dataset(source: str | Path, cache: Path, **settings: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return datasets.load_dataset(str(source), cache_dir=str(cache), **settings)


def without_key(row: dict[str, Any]) -> dict[str, Any]:
    return {"cls": int(row["cls"]), "txt": row["txt"]}


def by_tarfile(folder: Path) -> Any:
    found: list[dict[str, Any]] = []
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as archive:
            fields = [archive.extractfile(member).read().decode() for member in archive]  # type: ignore[union-attr]
        found += [{"cls": int(label), "txt": text} for label, text in zip(fields[::2], fields[1::2], strict=True)]
    return found


def by_webdataset(folder: Path) -> Any:
    webdataset = pytest.importorskip("webdataset")
    urls = [str(path) for path in sorted(folder.iterdir())]
    return [without_key(row) for row in webdataset.WebDataset(urls, shardshuffle=False).decode()]


PARQUET: list[Callable[[Path], Any]] = [by_pyarrow, by_pandas, by_polars, by_polars_lazily]
READERS = [
    *(("parquet", reader) for reader in (*PARQUET, by_hugging_face, by_hugging_face_named)),
    *(("tar", reader) for reader in (by_tarfile, by_webdataset, by_hugging_face_named)),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("opened", [False, True], ids=["as written", "after we read it"])
@pytest.mark.parametrize(("form", "reader"), READERS, ids=[f"{form} {reader.__name__}" for form, reader in READERS])
def test_other_tools_read_what_is_written(
    form: str, reader: Callable[[Path], Any], opened: bool, tmp_path: Path
) -> None:
    folder = write(tmp_path / "shards", form)
    if opened:
        data: Any = (lk.TarDataset if form == "tar" else lk.ParquetDataset)(folder)
        assert [without_key(row) for row in data] == ROWS
        lk.index_shards(folder, folder_index=True)
    assert reader(folder) == ROWS


@pytest.mark.parametrize("reader", [by_pyarrow, by_pandas])
def test_other_tools_read_the_folder_above(reader: Callable[[Path], Any], tmp_path: Path) -> None:
    """What lies next to the shards is hidden, so a folder of several splits is read too."""
    for name in ("test", "train"):
        write(tmp_path / "data" / name, "parquet")
    assert reader(tmp_path / "data") == ROWS * 2


@pytest.mark.parametrize("source", ["folder", "parquet"])
def test_splits_are_those_that_hugging_face_finds(source: str, tmp_path: Path) -> None:
    for name, rows in (("train", ROWS), ("test", ROWS[:7])):
        write(tmp_path / "data" / name, "parquet", rows)
    where, settings = (tmp_path / "data", {}) if source == "folder" else (source, {"data_dir": str(tmp_path / "data")})
    found = load_dataset(where, tmp_path / "cache", **settings)
    assert {name: list(split) for name, split in found.items()} == {"train": ROWS, "test": ROWS[:7]}


def test_tokens_are_files_of_numbers(tmp_path: Path) -> None:
    documents = [[row] * (row % 7 + 1) for row in range(50)]
    lk.write_shards(documents, tmp_path / "tokens", format="tokens", samples_per_shard=20)
    paths = sorted((tmp_path / "tokens").iterdir())
    flat = [np.fromfile(path, "<u2") for path in paths if path.suffix == ".bin"]
    ends = [np.fromfile(path, "<u8") for path in paths if path.suffix == ".index"]
    assert {path.suffix for path in paths} == {".bin", ".index"}
    cut = [
        part.tolist() for tokens, end in zip(flat, ends, strict=True) for part in np.split(tokens, end[:-1].astype(int))
    ]
    assert cut == documents


@pytest.mark.parametrize("form", ["tar", "parquet", "tokens"])
def test_shards_open_without_what_lies_next_to_them(form: str, tmp_path: Path) -> None:
    """Only verifying needs it."""
    rows: Any = [[row] for row in range(50)] if form == "tokens" else ROWS
    folder = write(tmp_path / "shards", form, rows)
    make: Any = {"tar": lk.TarDataset, "parquet": lk.ParquetDataset, "tokens": lk.DocumentDataset}[form]
    wanted = [str(row) for row in make(folder)]
    assert len(wanted) == 50
    assert lk.verify_shards(folder) == lk.verify_shards(manifest(folder)) == 50
    alone = shutil.copytree(folder, tmp_path / "alone")
    assert [str(row) for row in make(alone)] == wanted
    with pytest.raises(lk.WriteError, match=r"alone: has no manifest\.json in .*\.alone\.loaderkit.*copied without it"):
        lk.verify_shards(alone)
    with pytest.raises(lk.WriteError, match=r"files that are not shards, .*\.alone\.loaderkit is missing"):
        write(alone, form, rows)


@pytest.mark.parametrize("form", ["tar", "parquet", "tokens"])
def test_a_folder_of_an_earlier_version_is_read_checked_and_moved(form: str, tmp_path: Path) -> None:
    """Its manifest and index lie between the shards. Reading leaves them there; writing it again makes it plain."""
    rows: Any = [[row] for row in range(50)] if form == "tokens" else ROWS
    wanted = contents(write(tmp_path / "shards", form, rows))
    folder = as_earlier(tmp_path / "shards")
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}
    assert folder / MANIFEST in before
    assert (folder / FOLDER_INDEX in before) == (form != "tokens")
    assert lk.verify_shards(folder) == lk.verify_shards(folder / MANIFEST) == 50
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]} == before
    with pytest.raises(lk.WriteError, match="shards of another source"):
        write(folder, form, rows[:-1])
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == {
        path: time for path, time in before.items() if path != folder
    }
    write(folder, form, rows)
    assert contents(folder) == wanted
    assert folder_index(folder).exists() == (form != "tokens")


def test_a_run_that_an_earlier_version_began_is_finished(tmp_path: Path) -> None:
    """It kept each shard's index next to the shard."""
    wanted = contents(write(tmp_path / "whole", "tar"))

    def stop(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        lk.write_shards(ROWS, folder, samples_per_shard=20, on_shard=stop)
    kept = list((folder / ".shards").glob("*.lkindex"))
    assert len(kept) == 2
    for path in kept:
        path.rename(folder / path.name)
    write(folder, "tar")
    assert contents(folder) == wanted
    assert not list(folder.glob(".*"))


def test_shards_that_were_removed_leave_no_claim(tmp_path: Path) -> None:
    """Their manifest lies next to the folder, and outlives it."""
    folder = write(tmp_path / "shards", "tar")
    for remove in (lambda: shutil.rmtree(folder), lambda: [path.unlink() for path in folder.iterdir()]):
        remove()
        write(folder, "parquet", ROWS[:30])
        assert len(lk.ParquetDataset(folder)) == lk.verify_shards(folder) == 30
        shutil.rmtree(folder)
        write(folder, "tar")
        assert lk.verify_shards(folder) == 50


def test_a_place_for_the_manifest_is_needed_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / ".shards.loaderkit").write_bytes(b"")
    with pytest.raises(lk.WriteError, match=r"\.shards\.loaderkit: can't be made: .* such as .*shards/shards"):
        write(tmp_path / "shards", "tar")
    assert not [path for path in (tmp_path / "shards").iterdir() if not path.name.startswith(".")]


def test_the_place_of_the_manifest_follows_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is named."""
    write(tmp_path / "shards", "tar")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(tmp_path / "shards")
    monkeypatch.chdir(tmp_path / "shards")
    for name in (tmp_path / "shards", Path(), Path("../shards"), tmp_path / "other" / "link"):
        assert side(name).samefile(tmp_path / ".shards.loaderkit")
        assert lk.verify_shards(name) == 50
