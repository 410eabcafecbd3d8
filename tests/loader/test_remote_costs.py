"""What remote shards cost is said: how much of an epoch the cache holds, and that it is too small for a shuffle."""

import re
import warnings
from pathlib import Path
from typing import Any

import fsspec
import pytest

import loaderkit as lk
from loaderkit.cli.bench.subject import subject_of
from loaderkit.cli.doctor import Host, check_data

SHARDS, SIZE = 40, 1000


@pytest.fixture
def shards() -> str:
    files = fsspec.filesystem("memory")
    for part in range(SHARDS):
        files.pipe(f"/costs/{part:02}.jsonl", b'"' + b"x" * (SIZE - 3) + b'"\n')
    return "memory://costs/*.jsonl"


def make(shards: str, folder: Path, **settings: Any) -> lk.JsonlDataset:
    storage = lk.Storage(**{"cache_dir": folder / "cache"} | settings)
    return lk.JsonlDataset(shards, storage=storage, index_dir=folder / "index")


def test_the_doctor_measures_the_store(shards: str, tmp_path: Path) -> None:
    host = Host.detect()
    for settings, level in (({}, "ok"), ({"cache_bytes": SHARDS * SIZE // 4}, "note")):
        data = lk.SubsetDataset(make(shards, tmp_path, **settings), range(8))
        found = list(
            check_data(
                subject_of(lk.Loader(data, 4, collate_fn=list), batch_size=None, spawn=False), host, workers=0, ranks=1
            )
        )
        store, cache = (next(one for one in found if word in one.what) for word in ("remote shards,", "cache: "))
        assert re.search(
            r"40 remote shards, 39.1 KiB: \d+ ms to the first byte, (\d+ MB/s on a connection, \d+ MB/s on \d+ together; |"
            r"and hardly longer to the last one of 1000 bytes: the run waits for answers, not for bytes)",  # by chance: no wait
            store.what,
        )
        assert cache.level == level
    assert "lk.Storage(cache_bytes=40000)" in cache.remedy
    assert "25% of an epoch" in cache.what


def lines(loader: lk.Loader) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in str(loader.describe()).splitlines())


def test_the_description_says_how_much_the_cache_holds(shards: str, tmp_path: Path) -> None:
    whole, half = make(shards, tmp_path), make(shards, tmp_path, cache_bytes=SHARDS * SIZE // 2)
    told = f"{SHARDS} remote shards of {SHARDS * SIZE:,} bytes in all"
    assert lines(lk.Loader(whole, 4))["cache"] == f"{tmp_path / 'cache'} holds 100% of an epoch: {told}"
    assert lines(lk.Loader(half, 4))["cache"] == f"{tmp_path / 'cache'} holds 50% of an epoch: {told}"
    inside = lk.MapDataset(lk.SubsetDataset(half, [3, 5]), len)
    assert "holds 50% of an epoch" in lines(lk.Loader(inside, 2))["cache"]
    bare = make(shards, tmp_path, cache_dir=None)
    assert lines(lk.Loader(bare, 4))["cache"] == f"none, samples are requested from {told}"
    assert lk.Loader(range(5), 2).describe().cache is None


def test_a_cache_that_is_too_small_for_the_shuffle_is_warned_of(shards: str, tmp_path: Path) -> None:
    small = make(shards, tmp_path, cache_bytes=5 * SIZE)
    with pytest.warns(UserWarning, match=r"about 40 shards .* 40,000 bytes; the cache holds 5,000.*cache_bytes=40000"):
        assert sum(map(len, lk.Loader(small, 4, shuffle=True, collate_fn=list))) == SHARDS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sum(map(len, lk.Loader(small, 4, collate_fn=list)))
        sum(map(len, lk.Loader(make(shards, tmp_path), 4, shuffle=True, collate_fn=list)))
