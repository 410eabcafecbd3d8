"""Shards are downloaded ahead by their bytes: many small ones at a time, and the next before the last one is whole."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disk_use import peak_of
from servers import SlowStore, run_store

import loaderkit as lk

EACH, BYTES = 4, 250_000  # samples of a shard, bytes of a sample
SHARDS = 40
AT_ONCE = 8  # requests of a process, and more if there are more processes


class Samples:
    def __init__(self, each: int, size_bytes: int) -> None:
        self.count, self.size_bytes = SHARDS * each, size_bytes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"bin": bytes([index % 251]) * self.size_bytes, "cls": index}


def numbers(samples: list[Any]) -> list[int]:
    return [sample["cls"] for sample in samples]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    with run_store(tmp_path_factory.mktemp("store")) as found:
        folder = found.root / "bucket" / "train"
        lk.write_shards(Samples(EACH, BYTES), folder, samples_per_shard=EACH)
        storage = lk.Storage(found.options, cache_dir=folder.parents[2] / "cache of the index")
        lk.index_shards("s3://bucket/train/", storage=storage, index_dir=folder.parents[2] / "i", folder_index=True)
        yield found


def make(store: SlowStore, folder: Path, **settings: Any) -> lk.TarDataset:
    storage = lk.Storage(store.options, cache_dir=folder / "cache", **settings)
    data = lk.TarDataset("s3://bucket/train/", storage=storage, index_dir=folder / "none")
    store.reset()
    return data


def asked(store: SlowStore) -> list[str]:
    """Return the shards of which something was requested, in that order, each once."""
    return list(dict.fromkeys(one["path"] for one in store.requests() if one["path"].endswith(".tar")))


@pytest.fixture
def held(store: SlowStore) -> Iterator[SlowStore]:
    """A store whose limits a test changes."""
    yield store
    store.set(connection=1e9)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_many_small_shards_are_requested_before_the_first_is_whole(
    shuffle: bool, workers: int, held: SlowStore, tmp_path: Path
) -> None:
    """They are smaller than a block, and as many requests are under way as a process makes at a time."""
    loader = lk.Loader(make(held, tmp_path), EACH, shuffle=shuffle, num_workers=workers, collate_fn=numbers)
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.extend(number for batch in loader for number in batch), daemon=True)
    held.set(connection=200e3)
    reader.start()
    end, most = time.monotonic() + 60, 0
    while most < AT_ONCE and reader.is_alive() and time.monotonic() < end:
        most = max(most, sum("ended_s" not in one for one in held.requests() if one["path"].endswith(".tar")))
        time.sleep(0.02)
    held.set(connection=1e9)
    reader.join(60)
    loader.close()
    assert sorted(seen) == list(range(SHARDS * EACH))
    assert most >= AT_ONCE


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_byte_comes_once(shuffle: bool, store: SlowStore, tmp_path: Path) -> None:
    loader = lk.Loader(make(store, tmp_path), 2 * EACH, shuffle=shuffle, num_workers=2, collate_fn=numbers)
    assert sorted(number for batch in loader for number in batch) == list(range(SHARDS * EACH))
    loader.close()
    sent = sum(one["bytes"] for one in store.requests() if one["path"].endswith(".tar"))
    assert sent == sum(path.stat().st_size for path in (store.root / "bucket" / "train").glob("*.tar"))


def test_a_small_cache_is_not_filled_with_what_comes_next(store: SlowStore, tmp_path: Path) -> None:
    """Half of what the shards in use leave of it is, at most."""
    size = (store.root / "bucket" / "train" / "shard-000000.tar").stat().st_size
    data = make(store, tmp_path, cache_bytes=20 * size)
    loader = lk.Loader(data, EACH, collate_fn=numbers)
    batches = iter(loader)
    next(batches)
    end = time.monotonic() + 30
    while len(asked(store)) < 10 and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.2)  # others would have begun
    assert [f"s3:/{path}" for path in sorted(asked(store))] == data.shards[:10]
    loader.close()


def test_the_index_of_shards_is_requested_once(store: SlowStore, tmp_path: Path) -> None:
    data = make(store, tmp_path)
    data = lk.TarDataset("s3://bucket/train/", storage=data.storage, index_dir=tmp_path / "none")
    loader = lk.Loader(data, EACH, num_workers=2, collate_fn=numbers)
    assert sum(map(len, loader)) == SHARDS * EACH
    loader.close()
    assert len([one for one in store.requests() if one["path"].endswith(".lkindex")]) == 1


@pytest.mark.filterwarnings("ignore:Loader. about .* shards are in use")
@pytest.mark.parametrize(("workers", "room", "shuffle"), [(2, 4.5, False), (2, 12, True), (2, 24, True), (0, 24, True)])
def test_a_small_cache_costs_few_bytes_and_is_a_bound(
    workers: int, room: float, shuffle: bool, store: SlowStore, tmp_path: Path
) -> None:
    """What comes ahead does not displace what is in use."""
    paths = sorted((store.root / "bucket" / "train").glob("*.tar"))
    size = paths[0].stat().st_size
    data = make(store, tmp_path, cache_bytes=int(room * size))
    loader = lk.Loader(data, EACH, shuffle=shuffle, num_workers=workers, collate_fn=numbers)
    # A reader that opens a shard while it is evicted has it for a moment more.
    with peak_of(tmp_path / "cache", deleted=False) as peak:
        assert sorted(number for batch in loader for number in batch) == list(range(SHARDS * EACH))
    loader.close()
    assert peak.looks
    assert peak.size_bytes <= room * (size + 4096)  # disk blocks
    sent = sum(one["bytes"] for one in store.requests() if one["path"].endswith(".tar"))
    assert sent < 1.3 * SHARDS * size


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_download_is_raised_where_its_samples_are_read(
    workers: int, store: SlowStore, tmp_path: Path
) -> None:
    data = make(store, tmp_path)
    shard = store.root / "bucket" / "train" / "shard-000005.tar"
    hidden = shard.rename(shard.with_name("elsewhere"))
    loader = lk.Loader(data, EACH, num_workers=workers, collate_fn=numbers)
    batches = iter(loader)
    try:
        assert [next(batches) for _ in range(5)] == np.arange(5 * EACH).reshape(5, EACH).tolist()
        with pytest.raises(FileNotFoundError, match=r"shard-000005\.tar: .*is not there"):
            next(batches)
    finally:
        loader.close()
        hidden.rename(shard)


def test_a_run_that_stops_leaves_no_thread_and_no_part(held: SlowStore, tmp_path: Path) -> None:
    """Downloads that wait for their turn end without a request, the others when they are whole."""
    data = make(held, tmp_path)
    loader = lk.Loader(data, EACH, collate_fn=numbers)
    held.set(connection=2e6)
    next(iter(loader))
    loader.close()
    data.close()
    end = time.monotonic() + 30
    while downloads() and time.monotonic() < end:
        time.sleep(0.02)
    assert not downloads()
    assert not list((tmp_path / "cache").glob("*.lkpart"))
    assert len(asked(held)) < SHARDS / 2


def downloads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "loaderkit download"]
