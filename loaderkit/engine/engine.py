"""The interface of engines, and the engine without workers."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.plan import BatchKey
from loaderkit.system.host import on_host
from loaderkit.system.nested import pin
from loaderkit.system.start import Start


class Engine(Protocol):
    """Makes batches with a batch reader. They come in the order of their keys, whichever worker makes them.

    Attributes:
        name: "inline", "threads", "torch" or "ring".
        num_workers: Threads or processes; 0 without.
        prefetch: The most batches made ahead, by all workers together.
        dealing: How batches are dealt to workers, in words; None without workers.
        pinned: Whether batches come in page-locked memory.
        pinned_why: Why batches are copied to page-locked memory, if slots should have been page-locked in place; else
            empty.
        started: How the latest processes were started; None before, and without processes.
    """

    name: str
    num_workers: int
    prefetch: int
    dealing: str | None
    pinned: bool
    pinned_why: str
    started: Start | None

    def run(self, keys: Iterable[BatchKey], seed: int = 0) -> Iterator[object]:
        """Yield the batch of each key. A second run ends the first.

        Processes that the run starts are seeded by `seed` and their number, before the user's `worker_init_fn`.
        """
        ...

    def close(self) -> None:
        """Stop the workers; a later run starts them again."""
        ...


class InlineEngine:
    """Makes each batch in the calling thread, when it is asked for."""

    name: str = "inline"
    num_workers: int = 0
    prefetch: int = 0
    dealing: str | None = None
    pinned_why: str = ""
    started: Start | None = None

    def __init__(self, reader: BatchReader, *, pin_memory: bool = False) -> None:
        self._reader = reader
        self.pinned = pin_memory

    def run(self, keys: Iterable[BatchKey], seed: int = 0) -> Iterator[object]:
        batches = on_host(map(self._reader.read, keys))
        return map(pin, batches) if self.pinned else batches

    def close(self) -> None:
        """Do nothing: nothing runs in the background."""
