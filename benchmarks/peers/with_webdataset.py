"""webdataset in torchdata's StatefulDataLoader."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from lib.peer_jobs import SEED, SHARDS, Setting, augment, numbers_of, payload, resume_job
from lib.workloads import BATCH, load_pictures, pack, sequences, shards_of, timed_job
from lib.workloads import decode as decode_sample
from torch.utils.data import default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

NAME, VERSION = "webdataset + torchdata", webdataset.__version__


def write(folder: str) -> dict[str, Any]:
    path = Path(folder) / "tar"
    path.mkdir(parents=True)
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(path / f"{shard:03}.tar"), encoder=False) as writer:
            for number in numbers_of(shard):
                writer.write({"__key__": f"{number:06}", "id": str(number).encode(), "bin": payload(number)})
    return {"shards": sorted(map(str, path.iterdir()))}


def to_sample(entry: dict[str, Any]) -> dict[str, Any]:
    return augment(int(entry["id"]))


def collate(samples: Sequence[Any]) -> Any:
    return default_collate(list(samples))


def make(setting: Setting) -> Any:
    urls = sorted(map(str, (setting.folder / "tar").glob("*.tar")))
    data = webdataset.WebDataset(
        urls, shardshuffle=False, nodesplitter=webdataset.split_by_node, workersplitter=webdataset.split_by_worker
    )
    if setting.shuffle:  # seeded: by default its shuffle begins with the time
        random.Random(SEED).shuffle(urls)
        data = webdataset.WebDataset(
            urls, shardshuffle=False, nodesplitter=webdataset.split_by_node, workersplitter=webdataset.split_by_worker
        ).shuffle(200, rng=random.Random(SEED))
    data = data.map(to_sample).batched(setting.batch, collation_fn=collate)
    return StatefulDataLoader(data, batch_size=None, num_workers=setting.workers)


resume = resume_job(make)


def write_pictures(folder: str) -> dict[str, Any]:
    path = Path(folder) / "pictures-tar"
    if path.exists():
        return {}
    path.mkdir()
    pictures = load_pictures(folder)
    for shard, rows in enumerate(shards_of(len(pictures))):
        with webdataset.TarWriter(str(path / f"{shard:03}.tar"), encoder=False) as writer:
            for row in rows:
                content, label = pictures[row]
                writer.write({"__key__": f"{row:06}", "cls": str(label).encode(), "jpg": content})
    return {}


def write_data(folder: str, kind: str) -> dict[str, Any]:
    if kind == "pictures":
        return write_pictures(folder)
    write_tokens(folder, Path(folder) / "tokens-tar")
    return {}


def write_tokens(folder: str, path: Path) -> None:
    path.mkdir()
    found = list(sequences(folder))
    for shard, rows in enumerate(shards_of(len(found))):
        with webdataset.TarWriter(str(path / f"{shard:03}.tar"), encoder=False) as writer:
            for row in rows:
                writer.write({"__key__": f"{row:06}", "bin": found[row].tobytes()})


def to_tokens(entry: dict[str, Any]) -> Any:
    return np.frombuffer(entry["bin"], dtype=np.uint16)


def dataset_of(folder: str, kind: str, shuffle: bool) -> Any:
    urls = sorted(map(str, (Path(folder) / f"{kind}-tar").glob("*.tar")))
    data = webdataset.WebDataset(urls, shardshuffle=len(urls) if shuffle else False)
    data = data.shuffle(1000) if shuffle else data
    data = data.map(to_tokens if kind == "tokens" else decode_sample)
    return data.batched(BATCH, collation_fn=pack if kind == "tokens" else collate)


def loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
    return webdataset.WebLoader(dataset_of(folder, kind, shuffle), batch_size=None, num_workers=workers)


throughput = timed_job(loader_of)
