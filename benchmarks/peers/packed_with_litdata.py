"""litdata: documents of tokens, read in blocks by a TokensLoader. It has no packing on the way."""

from pathlib import Path
from typing import Any

import litdata
import torch
from common import SEED, Setting
from litdata.streaming import TokensLoader
from packed import Rows, packed_job
from packed_documents import DOCUMENTS, ROW, documents

NAME, VERSION = "litdata", litdata.__version__
BLOCKS = 32  # of a chunk


def document(number: int) -> Any:
    return torch.from_numpy(documents()[number]).int()


def write(folder: str) -> dict[str, Any]:
    litdata.optimize(
        document,
        list(range(DOCUMENTS)),
        str(Path(folder) / "tokens"),
        chunk_size=BLOCKS * ROW,
        num_workers=1,
        item_loader=TokensLoader(),
        start_method="fork",
    )
    return {"ways": list(WAYS)}


def blocks(setting: Setting) -> Any:
    data = litdata.StreamingDataset(
        str(setting.folder / "tokens"),
        item_loader=TokensLoader(block_size=ROW),
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
