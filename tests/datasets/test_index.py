"""An index file gives back what was written, whole or not at all."""

import json
import multiprocessing
import os
import signal
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from drawing import equal
from hypothesis import given
from hypothesis import strategies as st

import loaderkit as lk
from loaderkit.datasets.shards.index import (
    ShardIndex,
    beside_path,
    default_folder,
    index_path,
    save_index,
    saved_indexes,
)
from loaderkit.files.atomic import write_atomically
from loaderkit.files.urls import stat

INDEX = ShardIndex(
    kind="toy-1", count=3, size_bytes=7, changed_ns=2**62, offsets=np.array([[0, 1], [1, 2**40], [5, 7]])
)


@pytest.mark.parametrize("shape", [None, (0,), (5,), (0, 2), (4, 3)])
def test_an_index_comes_back(shape: tuple[int, ...] | None) -> None:
    offsets = None if shape is None else np.arange(int(np.prod(shape))).reshape(shape)
    index = ShardIndex(kind="toy-1", count=9, size_bytes=0, changed_ns=0, offsets=offsets)
    found = ShardIndex.from_bytes(index.to_bytes(), Path("x"))
    assert repr(found) == repr(index)
    assert equal(found.offsets, offsets)


@given(st.data())
def test_no_damage_goes_unnoticed(data: st.DataObject) -> None:
    content = INDEX.to_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    cut = content[:place]
    flipped = content[:place] + bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1 :]
    for broken in (cut, flipped):
        with pytest.raises(lk.ShardError, match="x: not a whole index file"):
            ShardIndex.from_bytes(broken, Path("x"))


def test_another_version_is_named() -> None:
    magic, line, body = INDEX.to_bytes()[:-4].split(b"\n", 2)
    content = b"\n".join([magic, json.dumps(json.loads(line) | {"version": 7}).encode(), body])
    content += zlib.crc32(content).to_bytes(4, "little")
    with pytest.raises(lk.ShardError, match="x: an index of version 7, this loaderkit reads 1"):
        ShardIndex.from_bytes(content, Path("x"))


def test_an_index_fits_the_shard_it_was_made_of(tmp_path: Path) -> None:
    shard = tmp_path / "a.toy"
    shard.write_bytes(b"0123456")
    assert not list(saved_indexes(str(shard), "toy-1", None))
    index = ShardIndex(kind="toy-1", count=1, size_bytes=7, changed_ns=shard.stat().st_mtime_ns)
    save_index(str(shard), index, None)
    [(path, found)] = saved_indexes(str(shard), "toy-1", None)
    assert (path, found) == (index_path(str(shard), None), index)
    assert found.fits(stat(str(shard)))
    assert not list(saved_indexes(str(shard), "toy-2", None))
    shard.write_bytes(b"01234567")
    assert not found.fits(stat(str(shard)))
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.toy"):
        found.fits(stat(str(shard)))


def test_shards_of_one_name_have_their_own_place(tmp_path: Path) -> None:
    for where in (str(tmp_path), None):
        places = {index_path(f"{folder}/a.toy", where) for folder in ("x", "y", "s3://x", "http://x")}
        assert len(places) == 4
        assert {place.parent for place in places} == {tmp_path if where else default_folder()}
    (tmp_path / "link").symlink_to(tmp_path)
    assert index_path(f"{tmp_path}/link/a.toy", None) == index_path(f"{tmp_path}/a.toy", None)
    assert len(index_path("y/" + "a" * 255, str(tmp_path)).name) < 255


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"LOADERKIT_INDEX_DIR": "/mine", "XDG_CACHE_HOME": "/caches", "HOME": "/me"}, "/mine"),
        ({"LOADERKIT_INDEX_DIR": "~/mine", "HOME": "/me"}, "/me/mine"),
        ({"LOADERKIT_INDEX_DIR": "", "XDG_CACHE_HOME": "/caches", "HOME": "/me"}, "/caches/loaderkit/index"),
        ({"XDG_CACHE_HOME": "not/absolute", "HOME": "/me"}, "/me/.cache/loaderkit/index"),
        ({"HOME": "/me"}, "/me/.cache/loaderkit/index"),
    ],
)
def test_the_environment_chooses_the_folder_of_indexes(
    variables: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOADERKIT_INDEX_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_folder() == Path(wanted)


def test_an_index_next_to_a_shard_counts_after_the_users_own(tmp_path: Path) -> None:
    """Not if the caller names a folder."""
    shard = str(tmp_path / "a.toy")
    first, second = (ShardIndex(kind="toy-1", count=count, size_bytes=7, changed_ns=0) for count in (1, 2))
    beside_path(shard).write_bytes(first.to_bytes())
    assert list(saved_indexes(shard, "toy-1", None)) == [(beside_path(shard), first)]
    save_index(shard, second, None)
    assert [index for _, index in saved_indexes(shard, "toy-1", None)] == [second, first]
    assert not list(saved_indexes(shard, "toy-1", str(tmp_path)))


def _write_for_ever(path: Path) -> None:
    number = 0
    while True:
        write_atomically(path, bytes([number % 251]) * 100_000)
        number += 1


def test_a_file_is_whole_at_any_moment_also_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.lkindex"
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write_for_ever, args=(path,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        seen = set()
        end = time.monotonic() + 20
        while len(seen) < 20 and time.monotonic() < end:
            if path.exists():
                content = path.read_bytes()
                assert len(content) == 100_000
                assert len(set(content)) == 1
                seen.add(content[0])
        assert len(seen) >= 20
    finally:
        for writer in writers:
            assert writer.pid is not None
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
    content = path.read_bytes()
    assert len(content) == 100_000
    assert len(set(content)) == 1
    write_atomically(path, b"again")
    assert path.read_bytes() == b"again"


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.lkindex"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
