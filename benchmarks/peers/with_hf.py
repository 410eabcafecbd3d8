"""Hugging Face datasets (streaming, Parquet) in torchdata's StatefulDataLoader."""

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from common import SEED, SHARDS, Setting, augment, numbers_of, payload, resume_job
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader
from workloads import BATCH, load_pictures, memory_job, pack, resume_jobs, sequences, shards_of, timed_job
from workloads import decode as decode_sample

NAME, VERSION = "HF datasets + torchdata", datasets.__version__


def write(folder: str) -> dict[str, Any]:
    path = Path(folder) / "parquet"
    path.mkdir(parents=True)
    for shard in range(SHARDS):
        numbers = list(numbers_of(shard))
        rows = {"id": numbers, "bin": [payload(number) for number in numbers]}
        pq.write_table(pa.table(rows), path / f"{shard:03}.parquet")
    return {"shards": sorted(map(str, path.iterdir()))}


def to_sample(entry: dict[str, Any]) -> dict[str, Any]:
    return augment(entry["id"])


def make(setting: Setting) -> Any:
    files = sorted(map(str, (setting.folder / "parquet").glob("*.parquet")))
    data = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    if setting.shuffle:
        data = data.shuffle(seed=SEED, buffer_size=200)
    data = data.map(to_sample, remove_columns=["bin"])
    if setting.world > 1:
        data = split_dataset_by_node(data, setting.rank, setting.world)
    return StatefulDataLoader(data, batch_size=setting.batch, num_workers=setting.workers)


resume = resume_job(make)


def write_data(folder: str, kind: str) -> dict[str, Any]:
    path = Path(folder) / f"hf-{kind}"
    path.mkdir()
    rows: list[dict[str, Any]]
    if kind == "pictures":
        rows = [{"jpg": content, "cls": label} for content, label in load_pictures(folder)]
        schema = pa.schema({"jpg": pa.binary(), "cls": pa.int64()})
    else:
        rows = [{"tokens": tokens} for tokens in sequences(folder)]
        schema = pa.schema({"tokens": pa.list_(pa.uint16())})
    for shard, mine in enumerate(shards_of(len(rows))):
        table = pa.Table.from_pylist(rows[mine[0] : mine[-1] + 1], schema)
        pq.write_table(table, path / f"{shard:03}.parquet")
    dataset_of(folder, kind)  # makes its Arrow files
    return {}


def dataset_of(folder: str, kind: str) -> Any:
    files = sorted(map(str, (Path(folder) / f"hf-{kind}").glob("*.parquet")))
    return datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=f"{folder}/hf-cache")


def decode_rows(rows: dict[str, Any]) -> dict[str, Any]:
    found = [decode_sample({"jpg": jpg, "cls": label}) for jpg, label in zip(rows["jpg"], rows["cls"], strict=True)]
    return {"jpg": [picture for picture, _ in found], "cls": [label for _, label in found]}


def settings_of(folder: str, kind: str, workers: int) -> dict[str, Any]:
    data = dataset_of(folder, kind)
    data = data.with_format("numpy") if kind == "tokens" else data.with_transform(decode_rows)
    collate = pack if kind == "tokens" else default_collate
    return {"dataset": data, "batch_size": BATCH, "num_workers": workers, "collate_fn": collate}


def loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
    return DataLoader(**settings_of(folder, kind, workers), shuffle=shuffle)


def stateful_loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
    return StatefulDataLoader(**settings_of(folder, kind, workers), shuffle=shuffle)


throughput = timed_job(loader_of)
memory = memory_job(loader_of)
save_state, resume_from_state = resume_jobs(stateful_loader_of)
