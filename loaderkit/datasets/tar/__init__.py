"""Samples in tar shards in the WebDataset layout, read by seeking."""

from loaderkit.datasets.tar.dataset import DECODERS, Decoder, TarDataset
from loaderkit.datasets.tar.index import TarTable, index_tar
from loaderkit.datasets.tar.open_shard import to_samples

__all__ = ["DECODERS", "Decoder", "TarDataset", "TarTable", "index_tar", "to_samples"]
