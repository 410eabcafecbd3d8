"""Shards that are read while they are downloaded: nobody waits for a whole shard at the start, and nothing wrong is read."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import SlowStore, run_store

import loaderkit as lk
from loaderkit.testing import assert_elastic, assert_exactly_once, assert_resumable

SHARD, EACH = 40, 300_000  # samples of a shard, bytes of a sample
SHARDS = 4


class Samples:
    def __init__(self, each: int = EACH) -> None:
        self.each = each

    def __len__(self) -> int:
        return SHARD * SHARDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"bin": bytes([index % 251]) * self.each, "cls": index}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    """It takes half a second for a shard, and has the index of a bucket's folder."""
    with run_store(tmp_path_factory.mktemp("store"), latency_s=0.005, total=25e6) as found:
        folder = found.root / "bucket" / "train"
        for name, each in ((folder, EACH), (folder.with_name("small"), 20_000)):
            lk.write_shards(Samples(each), name, samples_per_shard=SHARD)
            index(found, name)
        yield found


def index(store: SlowStore, folder: Path) -> None:
    """Write the index as `loaderkit index s3://... --folder-index` does: it knows the store's entity tags."""
    storage = lk.Storage(store.options, cache_dir=folder.parents[2] / "cache of the index")
    url = f"s3://bucket/{folder.name}/"
    lk.index_shards(url, storage=storage, index_dir=folder.parents[2] / "index", folder_index=True)


@pytest.fixture
def data(store: SlowStore, tmp_path: Path) -> lk.TarDataset:
    made = make(store, tmp_path)
    store.reset()
    return made


def make(store: SlowStore, folder: Path, name: str = "train") -> lk.TarDataset:
    storage = lk.Storage(store.options, cache_dir=folder / "cache")
    return lk.TarDataset(f"s3://bucket/{name}/", storage=storage, index_dir=folder / "none")


def check(data: Any, index: int) -> None:
    sample = data[index]
    assert sample["cls"] == index
    assert sample["bin"] == bytes([index % 251]) * EACH


def got(store: SlowStore, part: str) -> int:
    """Bytes that were sent of a file."""
    return sum(request["bytes"] for request in store.requests() if part in request["path"])


def copies(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("*.lkshard"))


def test_the_first_samples_do_not_wait_for_the_shard(data: Any, store: SlowStore, tmp_path: Path) -> None:
    check(data, SHARD + 5)
    assert got(store, "shard-000001.tar") < SHARD * EACH / 2
    assert not copies(tmp_path)
    check(data, SHARD + 30)  # this one waits
    assert len(copies(tmp_path)) == 1
    before = got(store, "shard-000001.tar")
    for place in range(SHARD, 2 * SHARD):
        check(data, place)
    assert got(store, "shard-000001.tar") == before
    assert before < SHARD * EACH * 1.1


def test_shards_that_are_read_in_their_order_are_fetched_ahead(data: Any, store: SlowStore) -> None:
    check(data, 0)
    assert not data.opened.fetched  # the first read has all connections
    check(data, 1)
    end = time.monotonic() + 60
    while got(store, "shard-000001.tar") < SHARD * EACH and time.monotonic() < end:
        time.sleep(0.05)
    assert got(store, "shard-000001.tar") >= SHARD * EACH
    assert got(store, "shard-000003.tar") == 0


@pytest.mark.each_value
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_shard_comes_about_once(shuffle: bool, workers: int, data: Any, store: SlowStore) -> None:
    loader = lk.Loader(data, 4, shuffle=shuffle, num_workers=workers, collate_fn=list)
    seen = sorted(sample["cls"] for batch in loader for sample in batch)
    loader.close()
    assert seen == list(range(len(data)))
    total = SHARD * SHARDS * EACH
    assert total <= got(store, ".tar") < 1.35 * total  # a batch of each shard and worker came by ranges


def test_a_shard_that_is_gone_is_an_error_until_it_is_there_again(data: Any, store: SlowStore, tmp_path: Path) -> None:
    shard = store.root / "bucket" / "train" / "shard-000002.tar"
    hidden = shard.rename(shard.with_name("elsewhere"))
    with pytest.raises(FileNotFoundError, match=r"shard-000002\.tar: .*is not there"):
        data[2 * SHARD]
    hidden.rename(shard)
    check(data, 2 * SHARD)
    check(data, 2 * SHARD + 20)


def test_a_shard_that_changes_during_its_download_is_refused(store: SlowStore, tmp_path: Path) -> None:
    shard = store.root / "bucket" / "train" / "shard-000003.tar"
    data = make(store, tmp_path)
    content = shard.read_bytes()
    times = shard.stat()
    replace(shard, content[:-9000] + bytes(9000))
    try:
        check(data, 3 * SHARD)  # these bytes are as they were
        with pytest.raises(ValueError, match=r"shard-000003\.tar: (changed while it was in use|has the checksum)"):
            data[3 * SHARD + 20]
    finally:
        replace(shard, content)
        os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))


def replace(path: Path, content: bytes) -> None:
    part = path.with_name(".part")
    part.write_bytes(content)
    part.replace(path)


def test_threads_share_an_arriving_shard(data: Any) -> None:
    failed: list[BaseException] = []

    def read(start: int) -> None:
        try:
            for place in range(start, SHARD, 4):
                check(data, place)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_begins_during_a_download_reads_too(method: Any, data: Any) -> None:
    check(data, 0)  # the download goes on in a thread of this process
    loader = lk.Loader(data, 8, num_workers=2, collate_fn=list, multiprocessing_context=method)
    assert sorted(sample["cls"] for batch in loader for sample in batch) == list(range(len(data)))
    loader.close()


def read_all(data: Any) -> None:
    for place in range(len(data)):
        check(data, place)


def test_a_kill_in_the_middle_of_a_download_leaves_nothing_behind(store: SlowStore, tmp_path: Path) -> None:
    """At several points; the next process downloads it again, and no lock is left."""
    for wait_s in (0.0, 0.1, 0.5):
        data = make(store, tmp_path / str(wait_s))
        store.reset()
        child = multiprocessing.get_context("fork").Process(target=read_all, args=(data,))
        child.start()
        end = time.monotonic() + 60
        while not got(store, ".tar") and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(wait_s)
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join(60)
        read_all(data)
        assert len(copies(tmp_path / str(wait_s))) == SHARDS
        assert not list((tmp_path / str(wait_s) / "cache").glob("*.lkpart"))


def test_the_laws_hold_while_shards_arrive(store: SlowStore, tmp_path: Path) -> None:
    """Each loader has an empty cache of its own."""
    made = iter(range(10**6))

    def make_loader(**settings: Any) -> lk.Loader:
        data = make(store, tmp_path / str(next(made)), "small")
        return lk.Loader(data, **{"batch_size": 32, "shuffle": True, "collate_fn": list} | settings)

    def ids(batch: Any) -> list[int]:
        return [sample["cls"] for sample in batch]

    assert_exactly_once(make_loader, worlds=(1, 2), samples=len(Samples()), ids=ids)
    assert_resumable(make_loader, stops=[1, 3], ids=ids)
    assert_elastic(make_loader, [{"num_workers": 2}, {"world_size": 2, "batch_size": 20}], stops=[2], ids=ids)
