"""loaderkit: packed documents, windows, and texts that are tokenized and packed on the way."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SEED, SHARDS, Setting
from packed import Rows, packed_job, packed_speed_jobs, write_tar
from packed_documents import Corpus, text_of, tokenize

import loaderkit as lk

NAME, VERSION = "loaderkit", lk.__version__
USED = (
    lk.Loader,
    lk.DocumentDataset,
    lk.PackCollate,
    lk.PackPlan,
    lk.StreamDataset,
    lk.TarReader,
    lk.TokenDataset,
    lk.WindowDataset,
)  # imported before the clock runs, as the peers are


def write(folder: str) -> dict[str, Any]:
    path, documents = Path(folder), Corpus.of(folder).documents()
    np.concatenate(documents).astype(np.uint16).tofile(path / "documents.ds")
    np.cumsum([len(document) for document in documents]).astype("<u8").tofile(path / "documents.ds.index")
    texts = [json.dumps({"text": text_of(document)}) + "\n" for document in documents]
    for shard in range(SHARDS):
        (path / f"{shard:02}.jsonl").write_text("".join(texts[shard::SHARDS]))
    write_tar(path / "tar", [document.astype(np.uint16).tobytes() for document in documents], "bin")
    return {"ways": list(WAYS)}


def split(setting: Setting) -> Any:
    data, row = lk.DocumentDataset(setting.folder / "documents.ds"), Corpus.of(setting.folder).row
    plan = lk.PackPlan(data.lengths(), row, setting.batch, too_long="split", seed=SEED)
    return lk.Loader(data, plan=plan, collate_fn=collate(row), num_workers=setting.workers)


def collate(row: int) -> Any:
    """Make what the peers' rows have: tokens as int64, and each one's position and document."""
    return lk.PackCollate(row_length=row, dtype=torch.int64, labels=None)


def windows(setting: Setting) -> Any:
    documents = lk.DocumentDataset(setting.folder / "documents.ds")
    data = lk.WindowDataset(documents, Corpus.of(setting.folder).row, seed=SEED)
    return lk.Loader(data, setting.batch, shuffle=True, seed=SEED, num_workers=setting.workers)


def fixed_windows(setting: Setting) -> Any:
    data = lk.TokenDataset(setting.folder / "documents.ds", length=Corpus.of(setting.folder).row, dtype="uint16")
    return lk.Loader(data, setting.batch, shuffle=True, seed=SEED, num_workers=setting.workers)


def to_tokens(sample: Any) -> Any:
    return tokenize(sample["text"])


def on_the_way(setting: Setting) -> Any:
    files = sorted(map(str, setting.folder.glob("*.jsonl")))
    stream = lk.StreamDataset(files, lk.LineReader(), lanes=4, shuffle=True, seed=SEED)
    return packed(setting, stream.map(to_tokens))


def stored_tokens(sample: Any) -> Any:
    return np.frombuffer(sample["bin"], np.uint16)


def from_tar(setting: Setting) -> Any:
    files = sorted(map(str, setting.folder.glob("tar/*.tar")))
    stream = lk.StreamDataset(files, lk.TarReader(), lanes=4, shuffle=True, seed=SEED)
    return packed(setting, stream.map(stored_tokens))


def packed(setting: Setting, documents: Any) -> Any:
    row = Corpus.of(setting.folder).row
    rows = documents.pack(row, waiting=32)
    stop: Any = (
        "each" if setting.world > 1 else None
    )  # each rank to the end of its own part, without a word to the others
    return lk.Loader(rows, setting.batch, collate_fn=collate(row), num_workers=setting.workers, stop=stop)


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
TIMED: dict[str, Any] = {
    "PackPlan, split": split,
    "stream.pack": from_tar,
    "WindowDataset": windows,
    "TokenDataset": fixed_windows,
}


def parts(batch: Any) -> tuple[int, Any]:
    tokens = batch["tokens"] if isinstance(batch, dict) else batch
    return len(tokens), tokens


throughput, count = packed_speed_jobs(TIMED, parts)
