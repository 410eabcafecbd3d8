"""The position in a stream, over ranks and workers, and its state."""

from loaderkit.loader.streams.position import StreamPosition
from loaderkit.loader.streams.state import merge_states

__all__ = ["StreamPosition", "merge_states"]
