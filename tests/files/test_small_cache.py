"""A cache that is smaller than the data: its size is a bound, little is requested twice, and nobody waits for room forever."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from disk_use import peak_of
from kill_chain import EPOCHS, RANKS, Chain, batches_of, downloaders, drawn
from leftovers import nothing_left
from servers import SlowStore, run_store

import loaderkit as lk

SHARD, EACH, SHARDS = 60, 145_000, 8  # samples of a shard, bytes of a sample
SHARD_BYTES = SHARD * (EACH + 2048) + 10_240
BATCH = 4
BLOCK = 1 << 22  # bytes of a request of a download
FORK = multiprocessing.get_context("fork")


class Samples:
    def __len__(self) -> int:
        return SHARD * SHARDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"bin": bytes([index % 251]) * EACH, "cls": index}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    """A bucket of tar shards with an index, and one of tokens."""
    with run_store(tmp_path_factory.mktemp("store"), latency_s=0.002, total=150e6) as found:
        folder = found.root / "bucket" / "train"
        lk.write_shards(Samples(), folder, samples_per_shard=SHARD)
        storage = lk.Storage(found.options, cache_dir=folder.parents[2] / "cache")
        lk.index_shards("s3://bucket/train/", storage=storage, index_dir=folder.parents[2] / "index", folder_index=True)
        (found.root / "bucket" / "tokens").mkdir()
        for part in range(SHARDS):
            np.save(found.root / "bucket" / "tokens" / f"{part}.npy", np.arange(10_000) + 10_000 * part)
        yield found


def make(store: SlowStore, folder: Path, room: float) -> lk.TarDataset:
    """Return the data with a cache for so many shards."""
    storage = lk.Storage(store.options, cache_dir=folder / "cache", cache_bytes=int(room * SHARD_BYTES))
    return lk.TarDataset("s3://bucket/train/", storage=storage, index_dir=folder / "none")


def numbers(samples: list[dict[str, Any]]) -> list[int]:
    """Return the samples' numbers, after a look at their bytes."""
    assert all(sample["bin"] == bytes([sample["cls"] % 251]) * EACH for sample in samples)
    return [sample["cls"] for sample in samples]


def got(store: SlowStore) -> int:
    return sum(request["bytes"] for request in store.requests() if ".tar" in request["path"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Loader. about .* shards are in use")
@pytest.mark.parametrize(
    ("workers", "room", "shuffle"), [(0, 0.5, True), (0, 3.1, False), (2, 1.5, False), (2, 3.1, True)]
)
def test_a_small_cache_is_a_bound_and_costs_little(
    workers: int, room: float, shuffle: bool, store: SlowStore, tmp_path: Path
) -> None:
    """Over two epochs, of which the second one may find some shards."""
    store.reset()
    loader = lk.Loader(make(store, tmp_path, room), BATCH, shuffle=shuffle, num_workers=workers, collate_fn=numbers)
    with peak_of(tmp_path / "cache") as peak:
        for _ in range(2):
            assert sorted(number for batch in loader for number in batch) == list(range(SHARD * SHARDS))
    loader.close()
    assert peak.looks
    assert peak.size_bytes <= room * SHARD_BYTES
    if room > 1:
        assert peak.size_bytes > 0.9 * SHARD_BYTES
    least = 2 * SHARDS * SHARD * EACH
    assert got(store) < 1.3 * least


@pytest.mark.filterwarnings("ignore:Loader. about .* shards are in use")
def test_mapped_shards_are_read_with_room_for_one(store: SlowStore, tmp_path: Path) -> None:
    """They must be whole files. A process keeps no more of them open than the cache holds."""
    size = (store.root / "bucket" / "tokens" / "0.npy").stat().st_size
    storage = lk.Storage(store.options, cache_dir=tmp_path / "cache", cache_bytes=size + 100)
    data = lk.TokenDataset("s3://bucket/tokens/", length=100, storage=storage)
    assert len(data) == SHARDS * 100
    for shuffle in (False, True):
        with peak_of(tmp_path / "cache") as peak:
            batches = list(lk.Loader(data, 100, shuffle=shuffle))
        assert sorted(row[0].item() for batch in batches for row in batch) == list(range(0, SHARDS * 10_000, 100))
        assert peak.size_bytes <= 2 * (size + 4096)
    smaller = lk.Storage(store.options, cache_dir=tmp_path / "cache", cache_bytes=100)
    with pytest.raises(ValueError, match=r"0.npy: has [0-9,]+ bytes, the cache holds 100"):
        lk.TokenDataset("s3://bucket/tokens/", length=100, storage=smaller)[0]


def test_a_shard_that_changes_while_there_is_no_room_is_refused(store: SlowStore, tmp_path: Path) -> None:
    shard = store.root / "bucket" / "train" / "shard-000003.tar"
    data, content, times = make(store, tmp_path, room=0.5), shard.read_bytes(), shard.stat()
    shard.write_bytes(content[:-9000] + bytes(9000))
    try:
        assert numbers([data[3 * SHARD]]) == [3 * SHARD]  # these bytes are as they were
        with pytest.raises(ValueError, match=r"shard-000003\.tar: changed while it was in use"):
            data[3 * SHARD + 20]
    finally:
        shard.write_bytes(content)
        os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))


def read_as(rank: int, store: SlowStore, folder: Path) -> None:
    """Read an epoch as one of two ranks, with two workers."""
    loader = lk.Loader(
        make(store, folder, SHARDS + 1), BATCH, world=lk.World(rank, 2), num_workers=2, collate_fn=numbers
    )
    (folder / f"{rank}.json").write_text(json.dumps([number for batch in loader for number in batch]))
    loader.close()


@pytest.fixture
def slow(store: SlowStore) -> Iterator[SlowStore]:
    store.set(total=40e6)
    store.reset()
    yield store
    store.set(total=150e6)


def test_ranks_share_downloads_and_do_not_wait_for_a_killed_one(slow: SlowStore, tmp_path: Path) -> None:
    """Each shard comes once for two ranks with two workers each. Then the rank that downloads is killed, and the other goes on."""
    ranks = [FORK.Process(target=read_as, args=(rank, slow, tmp_path)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
        assert rank.exitcode == 0
    read = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert sorted(read[0] + read[1]) == list(range(SHARD * SHARDS))
    blocks = sum(request["bytes"] == BLOCK for request in slow.requests() if ".tar" in request["path"])
    assert blocks == SHARDS * (SHARD_BYTES // BLOCK)  # whole blocks are requested for downloads alone

    folder = tmp_path / "killed"
    folder.mkdir()
    ranks = [FORK.Process(target=read_as, args=(rank, slow, folder)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    pids = {
        process.pid: rank
        for rank in ranks
        for process in [psutil.Process(rank.pid), *psutil.Process(rank.pid).children()]
    }
    end = time.monotonic() + 60
    while not (found := downloaders(set(pids))) and time.monotonic() < end:
        time.sleep(0.005)
        pids |= {child.pid: rank for rank in ranks for child in psutil.Process(rank.pid).children()}
    victim = pids[found[0]]
    other = ranks[1 - ranks.index(victim)]
    os.kill(found[0], signal.SIGKILL)
    victim.kill()
    other.join(60)
    assert other.exitcode == 0
    assert json.loads((folder / f"{ranks.index(other)}.json").read_text()) == read[ranks.index(other)]
    assert not list((folder / "cache").glob("*.lkpart"))


def read_all(bucket: Callable[[], lk.TarDataset]) -> None:
    assert sum(map(len, lk.Loader(bucket(), BATCH, collate_fn=list))) == 4 * SHARD


def download_in_a_process(bucket: Callable[[], lk.TarDataset]) -> None:
    """Read four shards; those that the cache lacks are downloaded."""
    process = FORK.Process(target=read_all, args=(bucket,))
    process.start()
    process.join(120)
    process.kill()  # if it hangs
    assert process.exitcode == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Loader. about .* shards are in use")
def test_chains_of_kills_change_nothing_and_leave_nothing(
    slow: SlowStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Ranks, workers and what downloads are killed at random; another number of workers resumes. The cache holds two of four shards."""
    chosen = [f"shard-{part:06}.tar" for part in range(4)]
    local = lk.TarDataset([slow.root / "bucket" / "train" / name for name in chosen], transform=drawn)
    for number in range(request.config.getoption("--kill-chains")):
        folder = tmp_path / str(number)

        def bucket(folder: Path = folder) -> lk.TarDataset:
            storage = lk.Storage(slow.options, cache_dir=folder / "cache", cache_bytes=int(2.1 * SHARD_BYTES))
            shards = [f"s3://bucket/train/{name}" for name in chosen]
            return lk.TarDataset(shards, storage=storage, index_dir=folder / "index", transform=drawn)

        with nothing_left():
            shuffle = number % 2 == 1
            whole = [batches_of(local, rank, shuffle=shuffle) for rank in range(RANKS)]
            local.close()
            assert sum(len(batch) for batches in whole for batch in batches.values()) == EPOCHS * 4 * SHARD
            chain = Chain(bucket, folder, shuffle=shuffle, seed=f"kills {number}")
            with peak_of(folder / "cache") as peak:
                chain.run(kills=3)
                download_in_a_process(bucket)  # which deletes what killed downloads left
        assert [chain.batches(rank) for rank in range(RANKS)] == whole, chain.killed
        assert peak.size_bytes <= 2.1 * SHARD_BYTES
        left = {path.suffix for path in [*(folder / "cache").iterdir(), *(folder / "index").glob("*")]}
        assert left <= {".lkshard", ".lock", ".lkindex"}, left
        print(
            f"chain {number}: killed {', '.join(chain.killed)}; peak {peak.size_bytes / SHARD_BYTES:.2f} shards",
            flush=True,
        )
        shutil.rmtree(folder)
