"""The engine without workers."""

from collections.abc import Iterable, Iterator
from typing import Any

from loaderkit.engine.batch_reader import BatchReader
from loaderkit.sampling.plan import BatchKey
from loaderkit.system.nested import pin


class InlineEngine:
    """Makes each batch in the calling thread, when it is asked for."""

    name: str = "inline"
    num_workers: int = 0
    prefetch: int = 0
    dealing: str | None = None
    pinned_why: str = ""

    def __init__(self, reader: BatchReader, *, pin_memory: bool = False) -> None:
        self._reader = reader
        self.pinned = pin_memory

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        batches = map(self._reader.read, keys)
        return map(pin, batches) if self.pinned else batches

    def close(self) -> None:
        """Do nothing: nothing runs in the background."""
