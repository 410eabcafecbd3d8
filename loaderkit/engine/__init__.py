"""Who runs the feed: takes batch keys, gives batches in that order."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from loaderkit.engine.inline import InlineEngine
from loaderkit.engine.torch import TorchEngine
from loaderkit.plan import BatchKey

__all__ = ["Engine", "InlineEngine", "TorchEngine"]


class Engine(Protocol):
    """Runs a feed. The order of the batches is that of the keys, whoever makes them."""

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        """Yield the keys' batches; a second run ends the first."""
        ...

    def close(self) -> None:
        """Stop what works in the background; a later run starts it again."""
        ...
