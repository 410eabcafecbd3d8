"""What a loader says of its downloads is what the store has sent, whoever downloads; without remote data it says nothing."""

import pickle
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from leftovers import nothing_left
from lightning_runs import quiet_trainer
from servers import SlowStore, run_store

import loaderkit as lk

SHARDS, EACH, BYTES = 6, 16, 600_000  # more than 8 MiB a shard: smaller ones are waited for


class Samples:
    def __len__(self) -> int:
        return SHARDS * EACH

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"bin": bytes([index]) * BYTES, "cls": index}


def labels(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([sample["cls"] for sample in samples])


labels.draws_nothing = True  # type: ignore[attr-defined]  # threads want to know


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    with run_store(tmp_path_factory.mktemp("store"), total=200e6) as found:
        folder = found.root / "bucket" / "train"
        lk.write_shards(Samples(), folder, samples_per_shard=EACH)
        yield found


def make(store: SlowStore, folder: Path, **settings: Any) -> lk.TarDataset:
    store.reset()
    storage = lk.Storage(store.options, **{"cache_dir": folder / "cache"} | settings)
    return lk.TarDataset("s3://bucket/train/", storage=storage, index_dir=folder / "index")


def sent(store: SlowStore) -> int:
    return sum(request["bytes"] for request in store.requests() if request["method"] == "GET")


@pytest.mark.parametrize(
    ("engine", "workers", "method"),
    [("inline", 0, None), ("threads", 2, None), ("ring", 2, "fork"), ("torch", 1, "fork"), ("ring", 1, "forkserver")],
)
def test_the_bytes_are_those_that_the_store_sent(
    engine: Any, workers: int, method: str | None, store: SlowStore, tmp_path: Path
) -> None:
    data = make(store, tmp_path)
    settings = {"engine": engine, "num_workers": workers, "multiprocessing_context": method, "collate_fn": labels}
    loader = lk.Loader(data, 4, shuffle=True, **settings)
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(len(data)))
    loader.close()
    found = loader.downloads
    assert found is not None
    assert found.size_bytes == sent(store) >= SHARDS * EACH * BYTES
    assert found.bytes_per_s > 0
    assert found.opened >= SHARDS
    assert found.hits < found.opened
    again = lk.Loader(make(store, tmp_path), 4, collate_fn=labels)
    assert len(list(again)) == len(again)
    warm = again.downloads
    assert warm is not None
    assert warm.size_bytes == sent(store) < BYTES
    assert warm.hit_rate == 1


def test_shards_ahead_are_those_in_the_cache_before_the_first_that_is_not(store: SlowStore, tmp_path: Path) -> None:
    data = make(store, tmp_path)
    for order in (lk.Sequential(len(data)), lk.ShardOrder(data.shard_sizes, seed=5, lanes=1, window=EACH, block=4)):
        wanted = list(dict.fromkeys((order.at(0, torch.arange(len(data)).numpy()) // EACH).tolist()))
        for missing in range(SHARDS):
            for part in wanted[:missing]:
                data.files.open(data.shards[part]).close()  # downloads it, and no shard ahead
            data.storage.counts.add("opened", 1)
            loader = lk.Loader(data, 4, order=order)
            assert loader.downloads is not None
            assert loader.downloads.shards_ahead == max(0, missing - 1), (order, missing)
        for copy in (tmp_path / "cache").glob("*.lkshard"):
            copy.unlink()
        data = make(store, tmp_path)


def test_ranks_and_parts_of_a_dataset_count_for_themselves(store: SlowStore, tmp_path: Path) -> None:
    first, second = make(store, tmp_path / "a"), make(store, tmp_path / "b")
    ranks = [lk.Loader(first, 4, world=lk.World(0, 2)), lk.Loader(second, 4, world=lk.World(1, 2))]
    for rank in ranks:
        assert sum(map(len, (batch["cls"] for batch in rank))) == len(first) // 2
    both = lk.Loader(lk.ConcatDataset([first, lk.MapDataset(second, str)]), 4)
    sizes = [loader.downloads.size_bytes for loader in (*ranks, both) if loader.downloads]
    assert sizes[0] + sizes[1] == sizes[2] > 2 * BYTES


def test_a_stream_counts_with_the_storage_of_its_reader(store: SlowStore, tmp_path: Path) -> None:
    storage = lk.Storage(store.options, cache_dir=tmp_path / "cache")
    urls = [f"s3://bucket/train/shard-{part:06}.tar" for part in range(SHARDS)]
    loader = lk.Loader(lk.StreamDataset(urls, lk.TarReader(storage=storage)), 4, num_workers=1, collate_fn=labels)
    store.reset()
    assert sum(map(len, loader)) == SHARDS * EACH
    found = loader.downloads
    assert found is not None
    assert found.size_bytes == sent(store) >= SHARDS * EACH * BYTES
    assert (found.opened, found.hits, found.shards_ahead) == (SHARDS, 0, None)


def test_it_is_shown_for_remote_data(store: SlowStore, tmp_path: Path) -> None:
    order = lk.Shuffled(SHARDS * EACH)  # which does not say what comes next: nothing is in the cache when it is opened
    loader = lk.Loader(make(store, tmp_path), 4, order=order, collate_fn=labels)
    with lk.DataWaitMonitor(warmup=0) as monitor:
        assert len(list(monitor.watch(loader))) == SHARDS * EACH / 4
    for text in (
        str(monitor.summary()),
        str(loader.describe()).splitlines()[-1],
        str(pickle.loads(pickle.dumps(loader)).downloads),
    ):
        assert re.search(r"[MK]B/s \(", text)
        assert " openings from the cache" in text
    assert monitor.summary().remedy.startswith("Only 0% of the shards were in the cache")


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [(0, "0 MB"), (900, "1 KB"), (105_937, "106 KB"), (999_400, "999 KB"), (1_000_000, "1 MB"), (12_000_000, "12 MB")],
)
def test_little_is_not_said_to_be_nothing(size_bytes: int, said: str) -> None:
    text = str(lk.Downloads(size_bytes=size_bytes, bytes_per_s=size_bytes / 10))
    assert text.endswith(f"({said} so far)")
    assert text.startswith("0.0") == (size_bytes == 0)


class Step(pl.LightningModule):
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        return None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


@pytest.mark.parametrize("remote", [True, False])
def test_the_progress_bar_shows_it_next_to_the_wait(remote: bool, store: SlowStore, tmp_path: Path) -> None:
    data: Any = make(store, tmp_path) if remote else Samples()
    callback = lk.DataWaitCallback(warmup=1, warn_above=None, log_every=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own
        trainer = quiet_trainer(tmp_path, callbacks=[callback], max_epochs=1)
        trainer.fit(Step(), lk.DataModule(data, loader=lk.LoaderConfig(batch_size=4, collate_fn=labels)))
    shown = {"download_mb_s", "cache_hits", "shards_ahead"}
    assert shown & set(trainer.progress_bar_metrics) == (shown if remote else set())
    assert shown & set(trainer.callback_metrics) == (shown if remote else set())
    assert "data_wait" in trainer.progress_bar_metrics


def test_local_data_counts_nothing(tmp_path: Path) -> None:
    lk.write_shards(Samples(), tmp_path, samples_per_shard=EACH)
    with nothing_left():
        data = lk.TarDataset(tmp_path)
        data[0]
        data.close()
        loader = lk.Loader(data, 4, collate_fn=labels)
        iterator = iter(loader)
        next(iterator)
        assert not any("memfd:loaderkit" in str(one) for one in map(_target, Path("/proc/self/fd").iterdir()))
        assert loader.downloads is None
        assert loader.describe().downloads is None
        assert "ownloads" not in str(loader.describe())
        del iterator, loader
        data.close()


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:
        return ""


def test_places_and_shards_ahead_are_told_without_a_download(store: SlowStore, tmp_path: Path) -> None:
    data = make(store, tmp_path)
    loader = lk.Loader(data, 4)
    assert data.place(0).row == 0
    data.storage.counts.add("opened", 1)
    assert loader.downloads is not None
    assert loader.downloads.shards_ahead == 0
    time.sleep(0.2)  # a download in the background would have begun
    assert not [request for request in store.requests() if request["path"].endswith(".tar")]
    assert not (tmp_path / "cache").exists()
