"""Samples in tar shards in the WebDataset layout, read by seeking."""

from loaderkit.datasets.tar.dataset import DECODERS, Decoder, TarDataset
from loaderkit.datasets.tar.index import TarTable, index_tar

__all__ = ["DECODERS", "Decoder", "TarDataset", "TarTable", "index_tar"]
