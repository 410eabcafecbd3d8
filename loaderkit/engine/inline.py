"""The engine without workers: batches are made where they are asked for."""

from collections.abc import Iterable, Iterator
from typing import Any

from loaderkit.engine.batch_reader import BatchReader
from loaderkit.sampling.plan import BatchKey
from loaderkit.system.nested import pin


class InlineEngine:
    """Makes each batch in the calling thread, when it is asked for."""

    name = "inline"
    num_workers = 0
    prefetch = 0
    dealing = None
    pinned_why = ""

    def __init__(self, feed: BatchReader, *, pin_memory: bool = False) -> None:
        self._feed = feed
        self.pinned = pin_memory

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        batches = map(self._feed.read, keys)
        return map(pin, batches) if self.pinned else batches

    def close(self) -> None:
        """Nothing runs in the background."""
