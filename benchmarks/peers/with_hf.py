"""Hugging Face datasets (streaming, Parquet) in torchdata's StatefulDataLoader; rows packed by trl, before and on the way."""

import functools
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets.distributed import split_dataset_by_node
from lib.packed import Rows, packed_job, packed_speed_jobs
from lib.packed_documents import Corpus, text_of, tokenize
from lib.peer_jobs import SEED, SHARDS, Setting, augment, numbers_of, payload, resume_job
from lib.workloads import BATCH, load_pictures, pack, sequences, shards_of, timed_job
from lib.workloads import decode as decode_sample
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader
from trl.data_utils import pack_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

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


throughput = timed_job(loader_of)


FEATURES = datasets.Features(input_ids=datasets.List(datasets.Value("int32")))


def write_packed(folder: str) -> dict[str, Any]:
    path, corpus = Path(folder), Corpus.of(folder)
    rows = [{"input_ids": document.astype(np.int32)} for document in corpus.documents()]
    whole = datasets.Dataset.from_list(rows, features=FEATURES).shuffle(seed=SEED)
    for strategy in ("bfd_split", "wrapped"):
        pack_dataset(whole, corpus.row, strategy).save_to_disk(path / strategy)
    texts = [json.dumps({"text": text_of(document)}) + "\n" for document in corpus.documents()]
    for shard in range(SHARDS):
        (path / f"{shard:02}.jsonl").write_text("".join(texts[shard::SHARDS]))
        whole.shard(SHARDS, shard).to_parquet(path / f"{shard:02}.parquet")
    return {"ways": list(WAYS), "name": "HF datasets + trl + torchdata"}


def before(setting: Setting, strategy: str = "bfd_split", collate: Any = list) -> Any:
    data: Any = datasets.load_from_disk(setting.folder / strategy)
    if setting.world > 1:
        sampler: Any = DistributedSampler(data, setting.world, setting.rank, seed=SEED)
    else:
        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(SEED))
    return StatefulDataLoader(
        data, batch_size=setting.batch, sampler=sampler, num_workers=setting.workers, collate_fn=collate
    )


def to_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": tokenize(sample["text"])}


def on_the_way(setting: Setting, shuffle: bool = True) -> Any:
    texts = streamed(setting, "json", "*.jsonl", shuffle).map(to_tokens, remove_columns=["text"], features=FEATURES)
    if setting.world > 1:
        texts = split_dataset_by_node(texts, setting.rank, setting.world)
    return packed(setting, texts, 100, list)


def from_parquet(setting: Setting) -> Any:
    return packed(
        setting, streamed(setting, "parquet", "*.parquet", True), 200, functools.partial(collate_packed, "bfd_split")
    )


def streamed(setting: Setting, kind: str, files: str, shuffle: bool) -> Any:
    data_files = sorted(map(str, setting.folder.glob(files)))
    data = datasets.load_dataset(kind, data_files=data_files, split="train", streaming=True)
    return data.shuffle(seed=SEED, buffer_size=100) if shuffle else data


def packed(setting: Setting, documents: Any, together: int, collate: Any) -> Any:
    rows = pack_dataset(documents, Corpus.of(setting.folder).row, "bfd_split", {"batch_size": together})
    return StatefulDataLoader(rows, batch_size=setting.batch, num_workers=setting.workers, collate_fn=collate)


def collate_packed(strategy: str, rows: list[Any]) -> Any:
    """Collate as trl's SFTTrainer does."""
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=strategy != "wrapped")
    return {"rows": len(rows), **collator(rows)}


def rows_of(batch: Any) -> Rows:
    return [[int(token) for token in row["input_ids"]] for row in batch]


WAYS: dict[str, Any] = {
    "bfd_split, packed before": before,
    "bfd_split, tokenized on the way": on_the_way,
    "bfd_split, tokenized on the way, in order": functools.partial(on_the_way, shuffle=False),
}
resume_packed = packed_job(WAYS, rows_of)
TIMED: dict[str, Any] = {
    "bfd_split, packed before": functools.partial(before, collate=functools.partial(collate_packed, "bfd_split")),
    "bfd_split, on the way": from_parquet,
    "wrapped, packed before": functools.partial(
        before, strategy="wrapped", collate=functools.partial(collate_packed, "wrapped")
    ),
}
throughput_packed, count_packed = packed_speed_jobs(TIMED, lambda batch: (batch["rows"], batch["input_ids"]))
