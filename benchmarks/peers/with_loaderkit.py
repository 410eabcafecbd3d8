"""loaderkit: tar shards, documents of tokens, Parquet; packed documents, windows, and texts that are packed on the way."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lib.packed import Rows, packed_job, packed_speed_jobs, write_tar
from lib.packed_documents import Corpus, text_of, tokenize
from lib.peer_jobs import SEED, SHARDS, Setting, augment, resume_job
from lib.workloads import BATCH, load_tokens, shards_of, timed_job

import loaderkit as lk
from peers.with_webdataset import write as write  # the same files
from peers.with_webdataset import write_pictures

ROW_GROUP = 4096
USED = (
    *(lk.Loader, lk.DocumentDataset, lk.PackCollate, lk.PackPlan, lk.ParquetDataset, lk.StreamDataset, lk.TarDataset),
    *(lk.TarReader, lk.TokenDataset, lk.WindowDataset),
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


def write_packed(folder: str) -> dict[str, Any]:
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


def text_tokens(sample: Any) -> Any:
    return tokenize(sample["text"])


def on_the_way(setting: Setting) -> Any:
    files = sorted(map(str, setting.folder.glob("*.jsonl")))
    stream = lk.StreamDataset(files, lk.LineReader(), lanes=4, shuffle=True, seed=SEED)
    return packed(setting, stream.map(text_tokens))


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
resume_packed = packed_job(WAYS, rows_of, merge=merge)
TIMED: dict[str, Any] = {
    "PackPlan, split": split,
    "stream.pack": from_tar,
    "WindowDataset": windows,
    "TokenDataset": fixed_windows,
}


def parts(batch: Any) -> tuple[int, Any]:
    tokens = batch["tokens"] if isinstance(batch, dict) else batch
    return len(tokens), tokens


throughput_packed, count_packed = packed_speed_jobs(TIMED, parts)
