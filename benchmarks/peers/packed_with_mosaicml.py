"""mosaicml-streaming: rows of joined documents, cut when they are written, as LLM Foundry does. It has no packing on the way."""

import atexit
from pathlib import Path
from typing import Any

import numpy as np
import streaming
from common import SEED, Setting
from packed import Rows, packed_job, packed_speed_jobs
from packed_documents import Corpus
from streaming.base.util import clean_stale_shared_memory

NAME, VERSION = "mosaicml-streaming", streaming.__version__
atexit.register(clean_stale_shared_memory)  # of jobs that were ended


def write(folder: str) -> dict[str, Any]:
    corpus = Corpus.of(folder)
    tokens = np.concatenate(corpus.documents()).astype(np.int32)
    with streaming.MDSWriter(
        out=str(Path(folder) / "mds"), columns={"tokens": "ndarray:int32"}, size_limit=5 * corpus.shard
    ) as writer:
        for start in range(0, len(tokens) - corpus.row + 1, corpus.row):
            writer.write({"tokens": tokens[start : start + corpus.row]})
    return {"ways": list(WAYS)}


def rows_written(setting: Setting) -> Any:
    clean_stale_shared_memory()  # by all ranks: they meet there
    data = streaming.StreamingDataset(
        local=str(setting.folder / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=setting.batch
    )
    return streaming.StreamingDataLoader(data, batch_size=setting.batch, num_workers=setting.workers)


def rows_of(batch: Any) -> Rows:
    found: Rows = batch["tokens"].tolist()
    return found


WAYS = {"rows cut when written": rows_written}
resume = packed_job(WAYS, rows_of)
throughput, count = packed_speed_jobs(WAYS, lambda batch: (len(batch["tokens"]), batch["tokens"]))
