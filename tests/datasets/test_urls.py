"""Shards are listed in one order on every machine, wherever they lie."""

import os
from pathlib import Path

import fsspec
import pytest

from loaderkit.datasets.find_shards import expand
from loaderkit.files.storage import Storage
from loaderkit.files.urls import is_remote, open_file, side_folder, stat

NAMES = ["a.x", "b.x", "B.x", "10.x", "9.x", "sub/c.x", "sub/.hidden.x", ".hidden/d.x", "a.x.lkindex", "a.y", "README"]
SHARDS = sorted(["a.x", "b.x", "B.x", "10.x", "9.x", "sub/c.x"])


def fill(folder: Path) -> None:
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())


@pytest.fixture
def memory() -> str:
    files = fsspec.filesystem("memory")
    files.store.clear()
    for name in NAMES:
        files.pipe(f"/bucket/{name}", name.encode())
    return "memory://bucket"


def test_a_folder_is_its_files_with_the_suffix(tmp_path: Path) -> None:
    fill(tmp_path)
    assert expand(tmp_path, [".x"]) == [str(tmp_path / name) for name in SHARDS]
    assert expand(str(tmp_path), [".y", ".x"]) == sorted(str(tmp_path / name) for name in [*SHARDS, "a.y"])


def test_a_remote_folder_is_the_same(memory: str) -> None:
    assert expand(memory, [".x"]) == [f"memory:///bucket/{name}" for name in SHARDS]
    assert expand(f"{memory}/*.x", [".x"]) == [f"memory:///bucket/{name}" for name in SHARDS[:-1]]
    assert expand(f"{memory}/a*", [".x"]) == ["memory:///bucket/a.x", "memory:///bucket/a.y"]
    assert expand(f"{memory}/a.y", [".x"]) == ["memory://bucket/a.y"]


def test_a_glob_and_a_file_need_no_suffix(tmp_path: Path) -> None:
    fill(tmp_path)
    assert expand(str(tmp_path / "a*"), [".x"]) == [str(tmp_path / "a.x"), str(tmp_path / "a.y")]
    assert expand(str(tmp_path / "**" / "c*"), [".z"]) == [str(tmp_path / "sub/c.x")]
    assert expand(tmp_path / "README", [".x"]) == [str(tmp_path / "README")]


def test_a_name_with_signs_of_a_glob_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a[1]*.x").write_bytes(b"")
    assert expand(tmp_path / "a[1]*.x", [".x"]) == [str(tmp_path / "a[1]*.x")]


def test_several_urls_keep_their_order(tmp_path: Path) -> None:
    fill(tmp_path)
    given = [tmp_path / "sub", str(tmp_path / "b.x"), tmp_path / "a.x"]
    assert [Path(shard).name for shard in expand(given, [".x"])] == ["c.x", "b.x", "a.x"]


def test_nothing_there_is_named(tmp_path: Path, memory: str) -> None:
    for url in (tmp_path, tmp_path / "no.x", tmp_path / "*.x", f"{memory}/no"):
        with pytest.raises(FileNotFoundError, match=r"no shards at '.*'.*, wanted files that end in \.x, \.z"):
            expand(url, [".x", ".z"])
    with pytest.raises(
        FileNotFoundError, match=r"no shards at '.*/0\.x'.*one of the names that '.*/\{0\.\.9\}\.x' stands for"
    ):
        expand(tmp_path / "{0..9}.x", [".x"])
    with pytest.raises(ValueError, match="no urls given"):
        expand([], [".x"])


def test_a_shard_is_listed_once(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "link.x").symlink_to(tmp_path / "a.x")
    for given in ([tmp_path / "sub", tmp_path / "sub/c.x"], [tmp_path / "link.x", tmp_path / "a.x"]):
        with pytest.raises(ValueError, match="1 of 1 shards are listed more than once"):
            expand(given, [".x"])


def test_files_open_and_tell_their_size(tmp_path: Path, memory: str) -> None:
    fill(tmp_path)
    os.utime(tmp_path / "a.x", ns=(0, 123456789))
    assert stat(str(tmp_path / "a.x")) == (3, 123456789, "")
    assert stat(f"{memory}/a.x")[0] == 3
    for shard in (str(tmp_path / "a.x"), f"{memory}/a.x"):
        with open_file(shard, Storage(cache_dir=tmp_path / "cache")) as file:
            file.seek(1)
            assert file.read() == b".x"
    assert is_remote("s3://a")
    assert not is_remote("C:/a")


@pytest.mark.parametrize(
    ("folder", "wanted"),
    [
        ("a/b", "a/.b.loaderkit"),
        ("a/b/", "a/.b.loaderkit"),
        ("b", ".b.loaderkit"),
        ("/b", "/.b.loaderkit"),
        ("/", "/.loaderkit"),
        ("s3://bucket/a/b", "s3://bucket/a/.b.loaderkit"),
        ("s3://bucket/b/", "s3://bucket/.b.loaderkit"),
        ("s3://bucket", "s3://bucket/.loaderkit"),
        ("memory://b", "memory://b/.loaderkit"),
        ("http://host/b", "http://host/.b.loaderkit"),
        ("hf://datasets/user/name", "hf://datasets/user/name/.loaderkit"),
        ("hf://datasets/user/name/train", "hf://datasets/user/name/.train.loaderkit"),
    ],
)
def test_what_describes_shards_lies_next_to_their_folder(folder: str, wanted: str) -> None:
    """In the same bucket or repository."""
    assert side_folder(folder) == wanted
