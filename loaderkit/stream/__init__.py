"""Data without an index: shards that are read from a sample on, in batches that resume."""

from loaderkit.stream.compose import chain, interleave
from loaderkit.stream.dataset import StreamDataset, from_start
from loaderkit.stream.iterable import IterableWalk
from loaderkit.stream.readers import LineReader, LogReader, PageReader, TarReader
from loaderkit.stream.sharded import StreamWalk
from loaderkit.stream.state import merge_states

__all__ = [
    "IterableWalk",
    "LineReader",
    "LogReader",
    "PageReader",
    "StreamDataset",
    "StreamWalk",
    "TarReader",
    "chain",
    "from_start",
    "interleave",
    "merge_states",
]
