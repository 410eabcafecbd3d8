"""mosaicml-streaming: StreamingDataset and its StreamingDataLoader; rows of joined documents are cut when they are written, as LLM Foundry does."""

import atexit
from pathlib import Path
from typing import Any

import numpy as np
import streaming
from lib.packed import Rows, packed_job, packed_speed_jobs
from lib.packed_documents import Corpus
from lib.peer_jobs import PAYLOAD, SAMPLES, SEED, SHARDS, Setting, augment, payload, resume_job
from lib.workloads import BATCH, load_pictures, pack, sequences, timed_job
from lib.workloads import decode as decode_sample
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import default_collate

NAME, VERSION = "mosaicml-streaming", streaming.__version__
atexit.register(clean_stale_shared_memory)  # of jobs that were ended


def write(folder: str) -> dict[str, Any]:
    path = Path(folder) / "mds"
    columns = {"id": "int", "bin": "bytes"}
    size = -(-SAMPLES // SHARDS)
    with streaming.MDSWriter(out=str(path), columns=columns, size_limit=size * (PAYLOAD + 17) + 500) as writer:
        for number in range(SAMPLES):
            writer.write({"id": number, "bin": payload(number)})
    return {"shards": sorted(str(file) for file in path.glob("*.mds"))}


class Numbers(streaming.StreamingDataset):  # type: ignore[misc]
    def __getitem__(self, at: Any) -> Any:
        return augment(int(super().__getitem__(at)["id"]))


def make(setting: Setting) -> Any:
    clean_stale_shared_memory()  # by all ranks: they meet there
    data = Numbers(
        local=str(setting.folder / "mds"), shuffle=setting.shuffle, shuffle_seed=SEED, batch_size=setting.batch
    )
    return streaming.StreamingDataLoader(data, batch_size=setting.batch, num_workers=setting.workers)


resume = resume_job(make)


def write_data(folder: str, kind: str) -> dict[str, Any]:
    path = str(Path(folder) / f"mds-{kind}")
    if kind == "pictures":
        with streaming.MDSWriter(out=path, columns={"jpg": "bytes", "cls": "int"}, size_limit=2**22) as writer:
            for content, label in load_pictures(folder):
                writer.write({"jpg": content, "cls": label})
        return {}
    with streaming.MDSWriter(out=path, columns={"tokens": "ndarray:uint16"}, size_limit=2**24) as writer:
        for tokens in sequences(folder):
            writer.write({"tokens": tokens})
    return {}


class Pictures(streaming.StreamingDataset):  # type: ignore[misc]
    def __getitem__(self, at: Any) -> Any:
        return decode_sample(super().__getitem__(at))


def loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
    clean_stale_shared_memory()
    make = Pictures if kind == "pictures" else streaming.StreamingDataset
    data = make(local=str(Path(folder) / f"mds-{kind}"), shuffle=shuffle, batch_size=BATCH)
    collate = default_collate if kind == "pictures" else pack
    return streaming.StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=collate)


throughput = timed_job(loader_of)


def write_packed(folder: str) -> dict[str, Any]:
    corpus = Corpus.of(folder)
    tokens = np.concatenate(corpus.documents()).astype(np.int32)
    with streaming.MDSWriter(
        out=str(Path(folder) / "mds"), columns={"tokens": "ndarray:int32"}, size_limit=5 * corpus.shard
    ) as writer:
        for start in range(0, len(tokens) - corpus.row + 1, corpus.row):
            writer.write({"tokens": tokens[start : start + corpus.row]})
    return {"ways": list(WAYS)}


def rows_written(setting: Setting) -> Any:
    clean_stale_shared_memory()  # by all ranks: they meet there
    data = streaming.StreamingDataset(
        local=str(setting.folder / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=setting.batch
    )
    return streaming.StreamingDataLoader(data, batch_size=setting.batch, num_workers=setting.workers)


def rows_of(batch: Any) -> Rows:
    found: Rows = batch["tokens"].tolist()
    return found


WAYS = {"rows cut when written": rows_written}
resume_packed = packed_job(WAYS, rows_of)
throughput_packed, count_packed = packed_speed_jobs(WAYS, lambda batch: (len(batch["tokens"]), batch["tokens"]))
