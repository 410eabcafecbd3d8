"""Files of documents in which no token is written twice, for several tests."""

from pathlib import Path
from typing import Any

import numpy as np


def write_documents(folder: Path, sizes: list[int], shards: int = 2) -> list[Any]:
    """Write documents of these lengths in shards as datatrove does, and return them; the tokens are 0, 1, 2, ..."""
    ends = np.cumsum(sizes)
    documents = np.split(np.arange(ends[-1], dtype="uint16"), ends[:-1])
    for shard, part in enumerate(np.array_split(np.arange(len(sizes)), shards)):
        mine = [documents[number] for number in part]
        np.concatenate([np.empty(0, "uint16"), *mine]).tofile(folder / f"{shard}.ds")
        np.cumsum([len(document) for document in mine]).astype("<u8").tofile(folder / f"{shard}.ds.index")
    return documents
