"""Worker processes that write each batch into memory that they share with the loader, and that is used again."""

from loaderkit.engine.ring.engine import RingEngine

__all__ = ["RingEngine"]
