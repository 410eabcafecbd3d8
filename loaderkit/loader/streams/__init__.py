"""Where a loader stands in a stream, over ranks and workers."""

from loaderkit.loader.streams.iterable import IterableWalk
from loaderkit.loader.streams.shards import StreamWalk
from loaderkit.loader.streams.state import merge_states

__all__ = ["IterableWalk", "StreamWalk", "merge_states"]
