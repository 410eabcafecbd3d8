"""Who runs the feed: takes batch keys, gives batches in that order."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch import device as torch_device  # `torch` is a module of this package

from loaderkit.config import LoaderConfig
from loaderkit.engine.inline import InlineEngine
from loaderkit.engine.torch import TorchEngine
from loaderkit.feed import Feed
from loaderkit.plan import BatchKey
from loaderkit.transfer import should_pin

__all__ = ["Engine", "InlineEngine", "TorchEngine", "make_engine"]


class Engine(Protocol):
    """Runs a feed. The order of the batches is that of the keys, whoever makes them."""

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        """Yield the keys' batches; a second run ends the first."""
        ...

    def close(self) -> None:
        """Stop what works in the background; a later run starts it again."""
        ...


def make_engine(feed: Feed, config: LoaderConfig) -> Engine:
    """Make the engine that the settings ask for."""
    device = None if config.device is None else torch_device(config.device)
    pinned = should_pin(config.pin_memory, device)
    if config.engine == "inline" or (config.engine == "auto" and config.num_workers == 0):
        return InlineEngine(feed, pin_memory=pinned)
    kind: Any = TorchEngine
    if config.engine == "ring":
        from loaderkit.engine.ring import RingEngine  # its import takes time

        kind = RingEngine
    engine: Engine = kind(
        feed,
        num_workers=config.num_workers,
        pin_memory=pinned,
        prefetch_factor=config.prefetch_factor,
        persistent_workers=bool(config.persistent_workers),
        multiprocessing_context=config.multiprocessing_context,
        worker_init_fn=config.worker_init_fn,
        timeout=config.timeout,
    )
    return engine
