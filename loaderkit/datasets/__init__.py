"""Dataset adapters and ways to combine datasets."""

from loaderkit.datasets.array import ArrayDataset
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset, ZipDataset
from loaderkit.datasets.csv import CsvDataset
from loaderkit.datasets.hf import HFDataset
from loaderkit.datasets.images import ImageFolder
from loaderkit.datasets.index import ShardError
from loaderkit.datasets.jsonl import JsonlDataset
from loaderkit.datasets.npy import NpyDataset
from loaderkit.datasets.parquet import ParquetDataset
from loaderkit.datasets.records import RecordDataset
from loaderkit.datasets.tar import DECODERS, TarDataset
from loaderkit.datasets.tokens import TokenDataset

__all__ = [
    "DECODERS",
    "ArrayDataset",
    "ConcatDataset",
    "CsvDataset",
    "HFDataset",
    "ImageFolder",
    "JsonlDataset",
    "MapDataset",
    "NpyDataset",
    "ParquetDataset",
    "RecordDataset",
    "ShardError",
    "SubsetDataset",
    "TarDataset",
    "TokenDataset",
    "ZipDataset",
]
