"""Data without an index: shards that are read from a sample on, in batches that resume."""

from loaderkit.stream.dataset import StreamDataset, from_start
from loaderkit.stream.loader import StreamLoader
from loaderkit.stream.state import merge_states

__all__ = ["StreamDataset", "StreamLoader", "from_start", "merge_states"]
