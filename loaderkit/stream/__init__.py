"""Data without an index: shards that are read from a sample on, in batches that resume."""

from loaderkit.stream.dataset import StreamDataset, from_start
from loaderkit.stream.iterable import IterableWalk
from loaderkit.stream.state import merge_states
from loaderkit.stream.walk import LaneWalk

__all__ = ["IterableWalk", "LaneWalk", "StreamDataset", "from_start", "merge_states"]
