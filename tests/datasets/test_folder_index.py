"""The index of a folder travels with its shards: a remote dataset opens with few requests, and nothing wrong is believed."""

import dataclasses
import json
import os
import pickle
import shutil
import threading
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tier
from servers import SlowStore, run_store
from shards_written import NeverScans, as_earlier, folder_index, side

import loaderkit as lk
from loaderkit.cli.command import main
from loaderkit.datasets.shards import folder_index as module
from loaderkit.datasets.shards.folder_index import FOLDER_INDEX, to_bytes
from loaderkit.testing import assert_exactly_once, assert_resumable

TEXTS = [{"cls": number, "txt": f"text {number}" * (number % 5)} for number in range(97)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    with run_store(tmp_path_factory.mktemp("store")) as found:
        yield found


@pytest.fixture
def storage(store: SlowStore, tmp_path: Path) -> lk.Storage:
    store.reset()
    return lk.Storage(store.options, cache_dir=tmp_path / "cache")


def write(folder: Path, samples: Any = TEXTS, **settings: Any) -> Path:
    lk.write_shards(samples, folder, **{"samples_per_shard": 10} | settings)
    return folder


def upload(folder: Path, store: SlowStore, bucket: str) -> str:
    """Copy a folder, and its index, into a bucket as `aws s3 sync` does: with other times and tags."""
    there = copy(folder, store.root / bucket / "train")
    for path in (*there.iterdir(), *side(there).iterdir()):
        os.utime(path, (1e9, 1e9))
    return f"s3://{bucket}/train"


def copy(folder: Path, there: Path) -> Path:
    shutil.copytree(folder, there, copy_function=shutil.copyfile)
    shutil.copytree(side(folder), side(there), copy_function=shutil.copyfile)
    return there


def keys(data: Any) -> list[int]:
    return [data[index]["cls"] for index in range(len(data))]


@pytest.mark.parametrize("how", ["/*.tar", "/", ""])
def test_a_bucket_opens_from_the_index_that_was_uploaded(
    how: str, store: SlowStore, storage: lk.Storage, tmp_path: Path
) -> None:
    url = upload(write(tmp_path / "shards"), store, f"opens{len(how)}")
    store.reset()
    data = NeverScans(url + how, storage=storage, index_dir=tmp_path / "index")
    asked = store.requests()
    assert len(data) == 97
    assert len(asked) <= (2 if how.startswith("/") else 4), asked  # without a slash: is it a file?
    assert keys(data) == list(range(97))
    assert keys(pickle.loads(pickle.dumps(data))) == list(range(97))
    assert not list(tmp_path.glob("index/*"))  # it needs no copy


def test_the_index_that_earlier_versions_wrote_is_read(store: SlowStore, storage: lk.Storage, tmp_path: Path) -> None:
    """It lies between the shards, and stays as it is: locally and in a bucket."""
    folder = as_earlier(write(tmp_path / "shards"))
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    assert folder / FOLDER_INDEX in before
    assert keys(NeverScans(folder)) == list(range(97))
    shutil.copytree(folder, store.root / "earlier" / "train")
    store.reset()
    data = NeverScans("s3://earlier/train/*.tar", storage=storage, index_dir=tmp_path / "index")
    assert len(store.requests()) <= 3  # the listing, and two places for the index
    assert keys(data) == list(range(97))
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before
    assert not side(folder).exists()


def test_a_thousand_shards_open_with_three_requests(store: SlowStore, storage: lk.Storage, tmp_path: Path) -> None:
    folder = write(tmp_path / "shards", [{"cls": number} for number in range(1000)], samples_per_shard=1)
    url = upload(folder, store, "thousand")
    store.reset()
    data = NeverScans(f"{url}/*.tar", storage=storage, index_dir=tmp_path / "index")
    assert (len(data.shards), len(data)) == (1000, 1000)
    assert len(store.requests()) <= 3  # two pages of the listing, and the index
    assert data[777]["cls"] == 777
    for rank in range(2):
        store.reset()
        mine = NeverScans(f"{url}/*.tar", storage=storage, index_dir=tmp_path / "index")
        assert len(store.requests()) <= 3
        next(iter(lk.Loader(mine, 2, shuffle=True, world=lk.World(rank, 2))))
        assert {asked["method"] for asked in store.requests()} == {"LIST", "GET"}  # no HEAD, before or after a download


def large_index(store: SlowStore, bucket: str, folder: Path) -> Path:
    """Make a bucket of three shards, whose index has a header of several megabytes, and return the index's path."""
    there = store.root / bucket / "train"
    there.mkdir(parents=True)
    one = write(folder / "one", [{"cls": 5}]) / "shard-000000.tar"
    index = lk.TarDataset(one).proven_index(0)
    names = [f"{number:05}-{'x' * 190}.tar" for number in range(6000)]
    for name in names[:3]:
        shutil.copy(one, there / name)
    side(there).mkdir()
    folder_index(there).write_bytes(to_bytes(dict.fromkeys(names, index)))
    assert folder_index(there).stat().st_size > 2 << 20
    return folder_index(there)


def test_a_header_of_several_megabytes_is_read_whole(store: SlowStore, storage: lk.Storage, tmp_path: Path) -> None:
    """With names of 200 letters; each shard's offsets are a request of their own, when it is first read."""
    large_index(store, "names", tmp_path)
    data = NeverScans("s3://names/train/*.tar", storage=storage, index_dir=tmp_path / "index")
    assert keys(data) == [5, 5, 5]
    ranges = [asked["range"] for asked in store.requests() if asked["path"].endswith(FOLDER_INDEX)]
    assert len(ranges) == 2 + 3


def test_a_copied_folder_is_not_indexed_again(tmp_path: Path) -> None:
    """A copy has other times: its content is compared once, and no warning says that it changed."""
    there = copy(write(tmp_path / "shards"), tmp_path / "copy")
    for path in there.iterdir():
        os.utime(path, (1e9, 1e9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert keys(NeverScans(there)) == list(range(97))
        folder_index(there).unlink()
        assert keys(NeverScans(there)) == list(range(97))  # now each shard has its own index


def test_a_changed_shard_is_found(tmp_path: Path) -> None:
    """Of the same size and in the same place, so only its content tells."""
    folder = write(tmp_path / "shards", [{"txt": f"{number:03}"} for number in range(30)])
    shard = folder / "shard-000001.tar"
    shard.write_bytes(shard.read_bytes().replace(b"011" + bytes(509), b"xyz" + bytes(509)))
    with pytest.raises(AssertionError, match=r"shard-000001\.tar was scanned"):
        NeverScans(folder)
    with pytest.warns(UserWarning, match=r"1 of 3 shards have changed since .* first is .*shard-000001\.tar"):
        assert lk.TarDataset(folder)[11]["txt"] == "xyz"
    assert NeverScans(folder)[11]["txt"] == "xyz"


def test_a_changed_remote_shard_is_refused_when_it_is_downloaded(
    store: SlowStore, storage: lk.Storage, tmp_path: Path
) -> None:
    folder = write(tmp_path / "shards", [{"txt": f"{number:03}"} for number in range(30)])
    url = upload(folder, store, "changed")
    shard = store.root / "changed" / "train" / "shard-000001.tar"
    shard.write_bytes(shard.read_bytes().replace(b"011" + bytes(509), b"xyz" + bytes(509)))
    data = NeverScans(f"{url}/", storage=storage, index_dir=tmp_path / "index")
    assert data[3]["txt"] == "003"
    with pytest.raises(
        ValueError, match=r"shard-000001.tar: has the checksum \w+, its folder's index has \w+\. Upload"
    ):
        data[11]
    shard.write_bytes(b"longer" + shard.read_bytes())
    with pytest.raises(AssertionError, match=r"shard-000001\.tar was scanned"):
        NeverScans(f"{url}/", storage=storage, index_dir=tmp_path / "index")


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "other version"])
def test_a_damaged_index_is_refused(damage: str, store: SlowStore, storage: lk.Storage, tmp_path: Path) -> None:
    url = upload(write(tmp_path / "shards"), store, f"damaged-{damage.replace(' ', '-')}")
    index = folder_index(store.root / url.split("/")[2] / "train")
    content = index.read_bytes()
    header = 20 + int.from_bytes(content[8:16], "little")
    index.write_bytes(
        {
            "cut": content[: header - 5],
            "flipped": content[:50] + bytes([content[50] ^ 1]) + content[51:],
            "emptied": content[:8] + bytes(12),
            "other version": content,
        }[damage]
    )
    if damage == "other version":
        changed = content[20:header].replace(b'"version": 1', b'"version": 9')
        index.write_bytes(content[:16] + zlib.crc32(changed).to_bytes(4, "little") + changed + content[header:])
    with pytest.raises(lk.ShardError, match="of version 9" if damage == "other version" else "not a whole index file"):
        NeverScans(f"{url}/", storage=storage, index_dir=tmp_path / "index")


def test_an_index_that_changes_during_a_run_is_refused(store: SlowStore, storage: lk.Storage, tmp_path: Path) -> None:
    index = large_index(store, "during", tmp_path)
    data = NeverScans("s3://during/train/*.tar", storage=storage, index_dir=tmp_path / "index")
    index.write_bytes(index.read_bytes()[::-1])
    with pytest.raises(lk.ShardError, match=r"changed while it was in use|not a whole index file"):
        keys(data)


def test_a_small_index_is_requested_once(store: SlowStore, storage: lk.Storage, tmp_path: Path) -> None:
    """So it may change during a run."""
    url = upload(write(tmp_path / "shards"), store, "once")
    data = NeverScans(f"{url}/", storage=storage, index_dir=tmp_path / "index")
    other = write(tmp_path / "other", TEXTS[::-1], samples_per_shard=7)
    shutil.copy(folder_index(other), folder_index(store.root / "once" / "train"))
    assert keys(data) == list(range(97))
    assert len([asked for asked in store.requests() if asked["path"].endswith(FOLDER_INDEX)]) == 1


@pytest.mark.parametrize("suffix", ["tar", "jsonl", "csv", "parquet"])
def test_the_command_writes_an_index_into_the_bucket(
    suffix: str, store: SlowStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of shards that others wrote, in each format that keeps an index."""
    folder = store.root / f"command-{suffix}" / "train"
    folder.mkdir(parents=True)
    make(suffix, folder)
    options = [f"--storage-option={name}={value}" for name, value in store.options.items()]
    url = f"s3://command-{suffix}/train/*.{suffix}"
    command = ["index", url, "--folder-index", *options, "--jobs=1"]
    command += [f"--index-dir={tmp_path / 'index'}", f"--cache-dir={tmp_path / 'cache'}"]
    assert main(command) == 0
    assert f"written s3://command-{suffix}/.train.loaderkit/{FOLDER_INDEX}" in capsys.readouterr().out
    store.reset()
    kind = {"tar": lk.TarDataset, "jsonl": lk.JsonlDataset, "csv": lk.CsvDataset, "parquet": lk.ParquetDataset}[suffix]
    storage = lk.Storage(store.options, cache_dir=tmp_path / "empty")
    data = kind(url, storage=storage, index_dir=tmp_path / "none")
    asked = [(request["method"], request["path"]) for request in store.requests()]
    assert len(data) == 40
    assert len(asked) <= {"parquet": 4, "csv": 3}.get(suffix, 2), asked  # and what the columns are
    assert len({str(data[index]) for index in range(40)}) == 40


def make(suffix: str, folder: Path) -> None:
    for part in range(4):
        rows = [{"number": 10 * part + row, "word": "w" * row} for row in range(10)]
        path = folder / f"part-{part}.{suffix}"
        if suffix == "tar":
            written = write(folder.parent.parent / f"made-{part}-{time.monotonic_ns()}", rows)
            shutil.move(written / "shard-000000.tar", path)
        elif suffix == "jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
        elif suffix == "csv":
            path.write_text("number,word\n" + "".join(f"{row['number']},{row['word']}\n" for row in rows))
        else:
            pyarrow = pytest.importorskip("pyarrow")
            from pyarrow import parquet

            parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def test_formats_without_an_index_read_only_heads(store: SlowStore, storage: lk.Storage, tmp_path: Path) -> None:
    """Tokens and arrays say their sizes at their beginning, or by their number of bytes."""
    folder = store.root / "heads"
    folder.mkdir()
    for part in range(3):
        np.arange(100_000 + part, dtype=np.uint16).tofile(folder / f"{part}.bin")
        np.save(folder / f"{part}.npy", np.arange(600_000, dtype=np.float32).reshape(-1, 2))
    tokens = lk.TokenDataset("s3://heads/*.bin", length=100, dtype="uint16", storage=storage)
    assert len(tokens) == 3000
    assert sum(request["bytes"] for request in store.requests()) == 0
    rows = lk.NpyDataset("s3://heads/*.npy", storage=storage)
    assert len(rows) == 900_000
    assert sum(request["bytes"] for request in store.requests()) < 1_000_000
    assert tokens[1][:3].tolist() == [100, 101, 102]
    assert rows[300_001].tolist() == [2.0, 3.0]


def test_the_laws_hold_over_a_folder_index(store: SlowStore, tmp_path: Path) -> None:
    url = upload(write(tmp_path / "shards"), store, "laws")
    storage = lk.Storage(store.options, cache_dir=tmp_path / "cache")

    def make_loader(**settings: Any) -> lk.Loader:
        data = NeverScans(f"{url}/", storage=storage, index_dir=tmp_path / "index")
        return lk.Loader(data, 7, shuffle=True, collate_fn=list, **settings)

    def ids(batch: Any) -> list[int]:
        return [sample["cls"] for sample in batch]

    assert_exactly_once(make_loader, worlds=(1, 3), samples=97, ids=ids)
    assert_resumable(make_loader, stops=tier.some(range(2 * 14 + 1)), ids=ids)


def test_the_indexes_of_several_folders_are_read_at_the_same_time(
    store: SlowStore, storage: lk.Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [
        upload(write(tmp_path / name, TEXTS[:20], samples_per_shard=5), store, f"several-{name}") for name in "abcde"
    ]
    meet, read = threading.Barrier(len(urls) - 1), module.read_folder_index

    def read_together(folder: str, storage: lk.Storage) -> Any:
        if "several-a" not in folder:  # the first one comes alone: it opens the session that the others share
            meet.wait(60)
        return read(folder, storage)

    monkeypatch.setattr(module, "read_folder_index", read_together)
    data = lk.TarDataset(urls, storage=storage, index_dir=tmp_path / "index")
    assert data.shard_sizes.tolist() == [5] * 4 * len(urls)
    assert not list(tmp_path.glob("index/*"))


@pytest.mark.parametrize("each", [2, 10])  # samples of a shard: with many shards, threads are for those that are read
@pytest.mark.parametrize("saved", [0, 1, 2, 5])
def test_saved_indexes_and_those_of_a_folder_are_mixed(
    saved: int, each: int, store: SlowStore, storage: lk.Storage, tmp_path: Path
) -> None:
    """Some shards have an index of their own on this host, some one in their folder, and some none."""
    bucket = f"mixed-{saved}-{each}"
    url = upload(write(tmp_path / "shards", TEXTS[:50], samples_per_shard=each), store, bucket)
    place, index = store.root / bucket / ".train.loaderkit" / FOLDER_INDEX, tmp_path / "index"
    place.unlink()
    for number in range(saved):
        lk.TarDataset(f"{url}/shard-{number:06}.tar", storage=storage, index_dir=index)
    assert len(list(index.glob("*"))) == saved
    entries = module.read_folder_index(str(tmp_path / "shards"), storage)
    names = sorted(entries)
    place.write_bytes(to_bytes({name: entries[name].loaded() for name in names[1:-1]}))
    before = {path: path.stat().st_ino for path in index.glob("*")}
    data = lk.TarDataset(f"{url}/*.tar", storage=storage, index_dir=index)
    assert data.shard_sizes.tolist() == [each] * len(names)
    after = {path: path.stat().st_ino for path in index.glob("*")}
    assert len(after) == len({0, len(names) - 1} | set(range(saved)))  # those that had none are indexed
    assert before.items() <= after.items()  # and no other
    assert keys(data) == list(range(50))


class Given(lk.JsonlDataset):
    """A format of a user that brings its indexes."""

    def given_index(self, shard: str) -> Any:
        index = super().scanned_index(shard)
        return dataclasses.replace(index, count=1, offsets=index.spans(shard)[:1])

    def scanned_index(self, shard: str) -> Any:
        raise AssertionError(shard)


@pytest.mark.parametrize("shards", [3, 20])  # a few, and so many that those without an index are told apart first
def test_an_index_that_a_format_of_a_user_gives_comes_first(shards: int, storage: lk.Storage, store: SlowStore) -> None:
    folder = store.root / f"given-{shards}" / "train"
    folder.mkdir(parents=True)
    for number in range(shards):
        (folder / f"{number:02}.jsonl").write_text(f'{{"number": {number}}}\n{{"number": -1}}\n')
    data = Given(f"s3://given-{shards}/train/*.jsonl", storage=storage, index_dir=folder.parent / "index")
    assert [data[row]["number"] for row in range(len(data))] == list(range(shards))
