__all__ = [
    "LineReader",
    "LogReader",
    "PageReader",
    "StreamDataset",
    "TarReader",
    "chain",
    "from_start",
    "interleave",
]

from .compose import chain as chain
from .compose import interleave as interleave
from .dataset import StreamDataset as StreamDataset
from .dataset import from_start as from_start
from .readers import LineReader as LineReader
from .readers import LogReader as LogReader
from .readers import PageReader as PageReader
from .readers import TarReader as TarReader
