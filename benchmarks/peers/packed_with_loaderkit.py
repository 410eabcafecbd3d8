"""loaderkit: packed documents, windows, and texts that are tokenized and packed on the way."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from common import SEED, SHARDS, Setting
from packed import Rows, packed_job
from packed_documents import ROW, document_lengths, documents, text_of, tokenize

import loaderkit as lk

NAME, VERSION = "loaderkit", lk.__version__


def write(folder: str) -> dict[str, Any]:
    path = Path(folder)
    np.concatenate(documents()).astype(np.uint16).tofile(path / "documents.ds")
    np.cumsum(document_lengths()).astype("<u8").tofile(path / "documents.ds.index")
    texts = [json.dumps({"text": text_of(document)}) + "\n" for document in documents()]
    for shard in range(SHARDS):
        (path / f"{shard:02}.jsonl").write_text("".join(texts[shard::SHARDS]))
    return {"ways": list(WAYS)}


def split(setting: Setting) -> Any:
    data = lk.DocumentDataset(setting.folder / "documents.ds")
    plan = lk.PackPlan(data.lengths(), ROW, setting.batch, too_long="split", seed=SEED)
    return lk.Loader(data, plan=plan, collate_fn=lk.PackCollate(row_length=ROW), num_workers=setting.workers)


def windows(setting: Setting) -> Any:
    data = lk.WindowDataset(lk.DocumentDataset(setting.folder / "documents.ds"), ROW, seed=SEED)
    return lk.Loader(data, setting.batch, shuffle=True, seed=SEED, num_workers=setting.workers)


def to_tokens(sample: Any) -> Any:
    return tokenize(sample["text"])


def on_the_way(setting: Setting) -> Any:
    files = sorted(map(str, setting.folder.glob("*.jsonl")))
    stream = lk.StreamDataset(files, lk.LineReader(), lanes=4, shuffle=True, seed=SEED)
    rows = stream.map(to_tokens).pack(ROW, waiting=32)
    stop: Any = (
        "each" if setting.world > 1 else None
    )  # each rank to the end of its own part, without a word to the others
    return lk.Loader(rows, setting.batch, num_workers=setting.workers, stop=stop)


def rows_of(batch: Any) -> Rows:
    if not isinstance(batch, dict):
        return [row.tolist() for row in batch]
    there = batch["document_ids"] >= 0
    return [row[mask].tolist() for row, mask in zip(batch["tokens"], there, strict=True)]


def merge(states: list[Any]) -> list[Any]:
    """Merge the states of ranks that did not exchange them."""
    return [lk.merge_states(states)] if states[0].get("missing") else states


WAYS = {"PackPlan, split": split, "WindowDataset": windows, "stream.pack, tokenized on the way": on_the_way}
resume = packed_job(WAYS, rows_of, merge=merge)
