"""Who makes batches: this process, threads, or worker processes."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from loaderkit.sampling.plan import BatchKey


class Engine(Protocol):
    """Runs a feed. The order of the batches is that of the keys, whoever makes them."""

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        """Yield the keys' batches; a second run ends the first."""
        ...

    def close(self) -> None:
        """Stop what works in the background; a later run starts it again."""
        ...
