"""loaderkit: tar shards, documents of tokens, Parquet."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from common import SEED, Setting, augment, resume_job
from with_webdataset import write as write  # the same files
from with_webdataset import write_pictures
from workloads import BATCH, load_tokens, memory_job, resume_jobs, shards_of, timed_job

import loaderkit as lk

ROW_GROUP = 4096
USED = (
    lk.Loader,
    lk.DocumentDataset,
    lk.ParquetDataset,
    lk.TarDataset,
)  # imported before the clock runs, as the peers are

NAME, VERSION = "loaderkit", lk.__version__


def to_sample(entry: dict[str, Any]) -> dict[str, Any]:
    return augment(entry["id"])


def make(setting: Setting) -> Any:
    data = lk.TarDataset(setting.folder / "tar", transform=to_sample)
    return lk.Loader(data, setting.batch, shuffle=setting.shuffle, seed=SEED, num_workers=setting.workers)


resume = resume_job(make)


def write_data(folder: str, kind: str) -> dict[str, Any]:
    path = Path(folder) / "loaderkit"
    path.mkdir(exist_ok=True)
    if kind == "pictures":
        return write_pictures(folder)  # the same tar files
    tokens, ends = load_tokens(folder)
    for shard, rows in enumerate(shards_of(len(ends))):
        start, stop = (int(ends[rows[0] - 1]) if rows[0] else 0), int(ends[rows[-1]])
        mine = ends[rows[0] : rows[-1] + 1] - start
        if kind == "tokens":
            tokens[start:stop].tofile(path / f"{shard:03}.ds")
            mine.astype("<u8").tofile(path / f"{shard:03}.ds.index")
            continue
        lists = pa.ListArray.from_arrays(np.concatenate([[0], mine]).astype(np.int32), pa.array(tokens[start:stop]))
        pq.write_table(pa.table({"tokens": lists}), path / f"{shard:03}.parquet", row_group_size=ROW_GROUP)
    return {}


def loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
    path = Path(folder) / "loaderkit"
    data: Any
    if kind == "pictures":
        data = lk.TarDataset(Path(folder) / "pictures-tar")
    elif kind == "tokens":
        data = lk.DocumentDataset(path)
    else:
        data = lk.ParquetDataset(path, ragged=True)
    return lk.Loader(data, BATCH, shuffle=shuffle, seed=SEED, num_workers=workers)


def count(batch: Any) -> int:
    found = batch if isinstance(batch, lk.Ragged) else next(iter(batch.values()))  # asking `in` compares tensors
    return len(found.offsets) - 1 if isinstance(found, lk.Ragged) else len(found)


throughput = timed_job(loader_of, count)


def throughput_one_thread(**job: Any) -> Any:
    """Decode in one thread, as the bare loop does."""
    torch.set_num_threads(1)
    return throughput(**job)


memory = memory_job(loader_of)
save_state, resume_from_state = resume_jobs(loader_of)


def index(*, folder: str, kind: str) -> dict[str, Any]:
    """Time what making the dataset takes where no index is there; for tar the 200,000 samples that webdataset reads."""
    with tempfile.TemporaryDirectory() as indexes:
        started = time.perf_counter()
        if kind == "tokens":
            data: Any = lk.DocumentDataset(Path(folder) / "loaderkit")
        elif kind == "parquet":
            data = lk.ParquetDataset(Path(folder) / "loaderkit", index_dir=indexes)
        else:
            data = lk.TarDataset(Path(folder) / "tokens-tar", index_dir=indexes)
        return {"seconds": time.perf_counter() - started, "samples": len(data)}
