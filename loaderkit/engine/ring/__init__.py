"""Worker processes that write batches into shared memory, which is reused."""

from loaderkit.engine.ring.engine import RingEngine

__all__ = ["RingEngine"]
