"""Batches with the time that making them took, for the engine that decides by it."""

import dataclasses
import time
from typing import Any, NamedTuple

import torch.utils.data as torch_data
from torch.utils.data._utils import worker as torch_worker

from loaderkit.engine.batch_reader import BatchReader
from loaderkit.sampling.plan import BatchKey


class Timed(NamedTuple):
    """A batch, the seconds that it took its worker to make it, and whether the data wants to know which worker reads it."""

    batch: Any
    making_s: float
    asked: bool


class TimedFeed(BatchReader):
    """A feed in a worker that takes the time."""

    @classmethod
    def of(cls, feed: BatchReader) -> "TimedFeed":
        """Make one that reads the same."""
        return cls(**{field.name: getattr(feed, field.name) for field in dataclasses.fields(feed) if field.init})

    def read(self, key: BatchKey) -> Timed:
        """Return the key's batch with its time."""
        info: Any = torch_data.get_worker_info()
        if type(info) is not _WatchedInfo:
            info = _WatchedInfo(info)
            torch_worker._worker_info = info
        start = time.perf_counter()
        batch = super().read(key)
        return Timed(batch, time.perf_counter() - start, info.asked)


class _WatchedInfo:
    """Stands in for what `get_worker_info()` returns, and takes note when data asks for more than whether there is one."""

    def __init__(self, info: Any) -> None:
        self._info, self.asked = info, False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._info, name)
        self.asked = self.asked or name != "writes_into_slots"  # our own question
        return value
