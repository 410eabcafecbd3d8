"""litdata: StreamingDataset and its StreamingDataLoader; documents of tokens in blocks by a TokensLoader, as it has no packing on the way."""

from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch
from lib.packed import Rows, packed_job, packed_speed_jobs
from lib.packed_documents import Corpus
from lib.peer_jobs import SAMPLES, SEED, SHARDS, Setting, augment, payload, resume_job
from lib.workloads import BATCH, load_pictures, load_tokens, pack, timed_job
from lib.workloads import decode as decode_sample
from litdata.streaming import TokensLoader
from torch.utils.data import default_collate

NAME, VERSION = "litdata", litdata.__version__


def record(number: int) -> dict[str, Any]:
    return {"id": number, "bin": payload(number)}


def write(folder: str) -> dict[str, Any]:
    path = Path(folder) / "litdata"
    size = -(-SAMPLES // SHARDS)
    litdata.optimize(record, list(range(SAMPLES)), str(path), chunk_size=size, num_workers=1, start_method="fork")
    return {"shards": sorted(str(file) for file in path.glob("*.bin"))}


def to_sample(entry: dict[str, Any]) -> dict[str, Any]:
    return augment(entry["id"])


def make(setting: Setting) -> Any:
    data = litdata.StreamingDataset(
        str(setting.folder / "litdata"), shuffle=setting.shuffle, seed=SEED, drop_last=False, transform=to_sample
    )
    return litdata.StreamingDataLoader(data, batch_size=setting.batch, num_workers=setting.workers)


resume = resume_job(make)


class ReadSequence:
    """One of the sequences; opened in litdata's own process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._found: Any = None

    def __call__(self, row: int) -> Any:
        self._found = self._found or load_tokens(self._folder)
        tokens, ends = self._found
        return np.array(tokens[ends[row - 1] if row else 0 : ends[row]])


class ReadPicture:
    """One of the pictures, not decoded."""

    def __init__(self, folder: str) -> None:
        self._pictures = load_pictures(folder)

    def __call__(self, row: int) -> Any:
        content, label = self._pictures[row]
        return {"jpg": content, "cls": label}


def write_data(folder: str, kind: str) -> dict[str, Any]:
    read: Any = ReadPicture(folder) if kind == "pictures" else ReadSequence(folder)
    size = len(load_pictures(folder)) if kind == "pictures" else len(load_tokens(folder)[1])
    path = str(Path(folder) / f"litdata-{kind}")
    litdata.optimize(read, list(range(size)), path, chunk_size=-(-size // 10), num_workers=1, start_method="fork")
    return {}


def loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
    transform = decode_sample if kind == "pictures" else None
    data = litdata.StreamingDataset(str(Path(folder) / f"litdata-{kind}"), shuffle=shuffle, transform=transform)
    collate = default_collate if kind == "pictures" else pack
    return litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=collate)


throughput = timed_job(loader_of)


def write_packed(folder: str) -> dict[str, Any]:
    corpus = Corpus.of(folder)
    documents = corpus.documents()
    litdata.optimize(
        lambda number: torch.from_numpy(documents[number]).int(),
        list(range(corpus.size)),
        str(Path(folder) / "tokens"),
        chunk_size=corpus.shard,
        num_workers=1,
        item_loader=TokensLoader(),
        start_method="fork",
    )
    return {"ways": list(WAYS)}


def blocks(setting: Setting) -> Any:
    data = litdata.StreamingDataset(
        str(setting.folder / "tokens"),
        item_loader=TokensLoader(block_size=Corpus.of(setting.folder).row),
        shuffle=True,
        seed=SEED,
        drop_last=False,
    )
    return litdata.StreamingDataLoader(data, batch_size=setting.batch, num_workers=setting.workers)


def rows_of(batch: Any) -> Rows:
    found: Rows = batch.tolist()
    return found


WAYS = {"TokensLoader": blocks}
resume_packed = packed_job(WAYS, rows_of)
throughput_packed, count_packed = packed_speed_jobs(WAYS, lambda batch: (len(batch), batch))
