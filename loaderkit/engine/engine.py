"""What every engine does."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from loaderkit.sampling.plan import BatchKey


class Engine(Protocol):
    """Runs a batch reader. Batches come in the order of their keys, whoever makes them.

    Attributes:
        name: "inline", "threads", "torch" or "ring".
        num_workers: Threads or processes; 0 without.
        prefetch: The most batches made ahead, by all workers together.
        dealing: Which worker makes which batch, in words; None without workers.
        pinned: Whether batches come in page-locked memory.
        pinned_why: Why page-locked batches are copies, if they were to be page-locked in place; else empty.
    """

    name: str
    num_workers: int
    prefetch: int
    dealing: str | None
    pinned: bool
    pinned_why: str

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        """Yield the batch of each key. A second run ends the first."""
        ...

    def close(self) -> None:
        """Stop the workers; a later run starts them again."""
        ...
