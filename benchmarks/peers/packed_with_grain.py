"""grain: its packing datasets, with their own checkpoints. Its packing by first fit does not cut, so it gets documents that are cut."""

import functools
from typing import Any

import grain
import grain.experimental
from common import SEED, Setting
from packed import Rows, packed_job
from packed_documents import ROW, Source, documents, pieces, text_of, tokenize

NAME, VERSION = "grain", grain.__version__


def write(folder: str) -> dict[str, Any]:  # noqa: ARG001 - the documents are in memory
    return {"ways": list(WAYS)}


def packed(setting: Setting, source: list[Any], *, texts: bool = False, cut: bool = True, after: bool = False) -> Any:
    data = grain.MapDataset.source(Source(source)).shuffle(seed=SEED)[setting.rank :: setting.world]
    data = data.map(lambda found: {"tokens": tokenize(found) if texts else found})
    workers = grain.MultiprocessingOptions(num_workers=setting.workers)
    found = data.to_iter_dataset()
    if after:
        found = found.mp_prefetch(workers)
    if cut:
        found = grain.experimental.ConcatThenSplitIterDataset(found, length_struct={"tokens": ROW})
    else:
        found = grain.experimental.FirstFitPackIterDataset(
            found, length_struct={"tokens": ROW}, num_packing_bins=16, seed=SEED
        )
    found = found.batch(setting.batch)
    return iter(found if after else found.mp_prefetch(workers))


def rows_of(batch: Any) -> Rows:
    there = batch["tokens_segment_ids"] > 0
    return [row[mask].tolist() for row, mask in zip(batch["tokens"], there, strict=True)]


def ways() -> dict[str, Any]:
    texts = [text_of(piece) for piece in pieces()]
    return {
        "FirstFitPack in workers": functools.partial(packed, source=pieces(), cut=False),
        "FirstFitPack after workers": functools.partial(packed, source=pieces(), cut=False, after=True),
        "ConcatThenSplit in workers": functools.partial(packed, source=documents()),
        "FirstFitPack, tokenized on the way": functools.partial(packed, source=texts, texts=True, cut=False),
    }


WAYS = ways()
resume = packed_job(WAYS, rows_of, save=lambda it: it.get_state(), load=lambda it, state: it.set_state(state))
