"""Where a loader stands in a stream, over ranks and workers."""

from loaderkit.loader.streams.iterable import IterablePosition
from loaderkit.loader.streams.shards import StreamPosition
from loaderkit.loader.streams.state import merge_states

__all__ = ["IterablePosition", "StreamPosition", "merge_states"]
