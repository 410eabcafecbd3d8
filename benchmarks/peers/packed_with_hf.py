"""Hugging Face datasets, packed by trl, in torchdata's StatefulDataLoader: packed before, and tokenized and packed on the way."""

import functools
import json
from pathlib import Path
from typing import Any

import datasets
import torch
from common import SEED, SHARDS, Setting
from datasets.distributed import split_dataset_by_node
from packed import Rows, packed_job
from packed_documents import ROW, documents, text_of, tokenize
from torch.utils.data import DistributedSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from trl.data_utils import pack_dataset

NAME, VERSION = "HF datasets + trl + torchdata", datasets.__version__
FEATURES = datasets.Features(input_ids=datasets.List(datasets.Value("int32")))


def write(folder: str) -> dict[str, Any]:
    path = Path(folder)
    rows = [{"input_ids": document.tolist()} for document in documents()]
    whole = datasets.Dataset.from_list(rows, features=FEATURES).shuffle(seed=SEED)
    pack_dataset(whole, ROW, "bfd_split").save_to_disk(path / "packed")
    texts = [json.dumps({"text": text_of(document)}) + "\n" for document in documents()]
    for shard in range(SHARDS):
        (path / f"{shard:02}.jsonl").write_text("".join(texts[shard::SHARDS]))
    return {"ways": list(WAYS)}


def before(setting: Setting) -> Any:
    data: Any = datasets.load_from_disk(setting.folder / "packed")
    if setting.world > 1:
        sampler: Any = DistributedSampler(data, setting.world, setting.rank, seed=SEED)
    else:
        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(SEED))
    return StatefulDataLoader(
        data, batch_size=setting.batch, sampler=sampler, num_workers=setting.workers, collate_fn=list
    )


def to_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": tokenize(sample["text"])}


def on_the_way(setting: Setting, shuffle: bool) -> Any:
    files = sorted(map(str, setting.folder.glob("*.jsonl")))
    texts = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    if shuffle:
        texts = texts.shuffle(seed=SEED, buffer_size=100)
    texts = texts.map(to_tokens, remove_columns=["text"], features=FEATURES)
    if setting.world > 1:
        texts = split_dataset_by_node(texts, setting.rank, setting.world)
    packed = pack_dataset(texts, ROW, "bfd_split", {"batch_size": 100})
    return StatefulDataLoader(packed, batch_size=setting.batch, num_workers=setting.workers, collate_fn=list)


def rows_of(batch: Any) -> Rows:
    return [[int(token) for token in row["input_ids"]] for row in batch]


WAYS: dict[str, Any] = {
    "bfd_split, packed before": before,
    "bfd_split, tokenized on the way": functools.partial(on_the_way, shuffle=True),
    "bfd_split, tokenized on the way, in order": functools.partial(on_the_way, shuffle=False),
}
resume = packed_job(WAYS, rows_of)
