"""Hugging Face datasets, packed by trl, in torchdata's StatefulDataLoader: packed before, and tokenized and packed on the way."""

import functools
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from common import SEED, SHARDS, Setting
from datasets.distributed import split_dataset_by_node
from packed import Rows, packed_job, packed_speed_jobs
from packed_documents import Corpus, text_of, tokenize
from torch.utils.data import DistributedSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from trl.data_utils import pack_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

NAME, VERSION = "HF datasets + trl + torchdata", datasets.__version__
FEATURES = datasets.Features(input_ids=datasets.List(datasets.Value("int32")))


def write(folder: str) -> dict[str, Any]:
    path, corpus = Path(folder), Corpus.of(folder)
    rows = [{"input_ids": document.astype(np.int32)} for document in corpus.documents()]
    whole = datasets.Dataset.from_list(rows, features=FEATURES).shuffle(seed=SEED)
    for strategy in ("bfd_split", "wrapped"):
        pack_dataset(whole, corpus.row, strategy).save_to_disk(path / strategy)
    texts = [json.dumps({"text": text_of(document)}) + "\n" for document in corpus.documents()]
    for shard in range(SHARDS):
        (path / f"{shard:02}.jsonl").write_text("".join(texts[shard::SHARDS]))
        whole.shard(SHARDS, shard).to_parquet(path / f"{shard:02}.parquet")
    return {"ways": list(WAYS)}


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
        setting, streamed(setting, "parquet", "*.parquet", True), 200, functools.partial(collate, "bfd_split")
    )


def streamed(setting: Setting, kind: str, files: str, shuffle: bool) -> Any:
    data_files = sorted(map(str, setting.folder.glob(files)))
    data = datasets.load_dataset(kind, data_files=data_files, split="train", streaming=True)
    return data.shuffle(seed=SEED, buffer_size=100) if shuffle else data


def packed(setting: Setting, documents: Any, together: int, collate: Any) -> Any:
    rows = pack_dataset(documents, Corpus.of(setting.folder).row, "bfd_split", {"batch_size": together})
    return StatefulDataLoader(rows, batch_size=setting.batch, num_workers=setting.workers, collate_fn=collate)


def collate(strategy: str, rows: list[Any]) -> Any:
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
resume = packed_job(WAYS, rows_of)
TIMED: dict[str, Any] = {
    "bfd_split, packed before": functools.partial(before, collate=functools.partial(collate, "bfd_split")),
    "bfd_split, on the way": from_parquet,
    "wrapped, packed before": functools.partial(
        before, strategy="wrapped", collate=functools.partial(collate, "wrapped")
    ),
}
throughput, count = packed_speed_jobs(TIMED, lambda batch: (batch["rows"], batch["input_ids"]))
