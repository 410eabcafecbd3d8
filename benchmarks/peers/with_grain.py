"""grain: its packing datasets, with their own checkpoints. Its packing by first fit does not cut, so it gets documents that are cut."""

import functools
from typing import Any

import grain
import grain.experimental
from lib.packed import Rows, packed_job, packed_speed_jobs
from lib.packed_documents import Corpus, Source, text_of, tokenize
from lib.peer_jobs import SEED, Setting

NAME, VERSION = "grain", grain.__version__
CONCAT = grain.experimental.ConcatThenSplitIterDataset


def write_packed(folder: str) -> dict[str, Any]:  # noqa: ARG001 - the documents are in memory
    return {"ways": list(WAYS)}


def packed(
    setting: Setting,
    *,
    fit: Any = grain.experimental.FirstFitPackIterDataset,
    bins: int = 16,
    texts: bool = False,
    after: bool = False,
) -> Any:
    corpus = Corpus.of(setting.folder)
    source = corpus.documents() if fit is CONCAT else corpus.pieces()
    if texts:
        source = [text_of(piece) for piece in source]
    data = grain.MapDataset.source(Source(source)).shuffle(seed=SEED)[setting.rank :: setting.world]
    data = data.map(lambda found: {"tokens": tokenize(found) if texts else found})
    workers = grain.MultiprocessingOptions(num_workers=setting.workers)
    found = data.to_iter_dataset()
    if after:
        found = found.mp_prefetch(workers)
    settings = {} if fit is CONCAT else {"num_packing_bins": bins, "seed": SEED}
    found = fit(found, length_struct={"tokens": corpus.row}, **settings).batch(setting.batch)
    return iter(found if after else found.mp_prefetch(workers))


def rows_of(batch: Any) -> Rows:
    there = batch["tokens_segment_ids"] > 0
    return [row[mask].tolist() for row, mask in zip(batch["tokens"], there, strict=True)]


WAYS: dict[str, Any] = {
    "FirstFitPack in workers": packed,
    "FirstFitPack after workers": functools.partial(packed, after=True),
    "ConcatThenSplit in workers": functools.partial(packed, fit=CONCAT),
    "FirstFitPack, tokenized on the way": functools.partial(packed, texts=True),
}
resume_packed = packed_job(WAYS, rows_of, save=lambda it: it.get_state(), load=lambda it, state: it.set_state(state))
TIMED: dict[str, Any] = {
    "FirstFitPack": functools.partial(packed, bins=128),
    "BestFitPack": functools.partial(packed, fit=grain.experimental.BestFitPackIterDataset, bins=128),
    "ConcatThenSplit": functools.partial(packed, fit=CONCAT),
}
throughput_packed, count_packed = packed_speed_jobs(TIMED, lambda batch: (len(batch["tokens"]), batch["tokens"]))
