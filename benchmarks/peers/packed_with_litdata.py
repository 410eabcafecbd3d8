"""litdata: documents of tokens, read in blocks by a TokensLoader. It has no packing on the way."""

from pathlib import Path
from typing import Any

import litdata
import torch
from common import SEED, Setting
from litdata.streaming import TokensLoader
from packed import Rows, packed_job, packed_speed_jobs
from packed_documents import Corpus

NAME, VERSION = "litdata", litdata.__version__


def write(folder: str) -> dict[str, Any]:
    corpus = Corpus.of(folder)
    documents = corpus.documents()
    litdata.optimize(
        lambda number: torch.from_numpy(documents[number]).int(),
        list(range(corpus.size)),
        str(Path(folder) / "tokens"),
        chunk_size=corpus.shard,
        num_workers=1,
        item_loader=TokensLoader(),
        start_method="fork",
    )
    return {"ways": list(WAYS)}


def blocks(setting: Setting) -> Any:
    data = litdata.StreamingDataset(
        str(setting.folder / "tokens"),
        item_loader=TokensLoader(block_size=Corpus.of(setting.folder).row),
        shuffle=True,
        seed=SEED,
        drop_last=False,
    )
    return litdata.StreamingDataLoader(data, batch_size=setting.batch, num_workers=setting.workers)


def rows_of(batch: Any) -> Rows:
    found: Rows = batch.tolist()
    return found


WAYS = {"TokensLoader": blocks}
resume = packed_job(WAYS, rows_of)
throughput, count = packed_speed_jobs(WAYS, lambda batch: (len(batch), batch))
