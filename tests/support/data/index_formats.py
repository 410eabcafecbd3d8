"""Formats with which the `loaderkit index` command is tested: bytes are samples; one is slow, one dies."""

import os
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.sharded import ShardedDataset


class Bytes(ShardedDataset):
    kind = "bytes-1"
    suffixes: ClassVar[tuple[str, ...]] = (".bytes",)

    def __init__(self, urls: Any, *, step: int = 1, **settings: Any) -> None:
        self.step = step
        super().__init__(urls, **settings)

    def scan(self, shard: str) -> tuple[int, np.ndarray]:
        with Path(shard).open("rb") as file:
            content = file.read()
        if b"!" in content:
            raise ShardError(f"{shard}: a '!' at byte {content.index(b'!')}.")
        offsets = np.arange(0, len(content), self.step)
        return len(offsets), offsets

    def open(self, shard: str, index: ShardIndex) -> str:
        return shard

    def read(self, handle: str, rows: np.ndarray, index: ShardIndex) -> list[Any]:
        return rows.tolist()


class Slow(Bytes):
    def scan(self, shard: str) -> tuple[int, np.ndarray]:
        time.sleep(0.5)
        return super().scan(shard)


class Dying(Bytes):
    def scan(self, shard: str) -> tuple[int, np.ndarray]:
        if shard.endswith("3.bytes"):
            os._exit(9)
        return super().scan(shard)


class NoIndex(Bytes):
    keeps_index = False
