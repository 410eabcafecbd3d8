"""Dataset adapters and ways to combine datasets. Adapters are loaded when they are used."""

import importlib
from typing import TYPE_CHECKING, Any

from loaderkit.datasets.array import ArrayDataset
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset, ZipDataset

if TYPE_CHECKING:
    from loaderkit.datasets.csv import CsvDataset as CsvDataset
    from loaderkit.datasets.documents import DocumentDataset as DocumentDataset
    from loaderkit.datasets.hf import HFDataset as HFDataset
    from loaderkit.datasets.images import ImageFolder as ImageFolder
    from loaderkit.datasets.index import ShardError as ShardError
    from loaderkit.datasets.jsonl import JsonlDataset as JsonlDataset
    from loaderkit.datasets.npy import NpyDataset as NpyDataset
    from loaderkit.datasets.parquet import ParquetDataset as ParquetDataset
    from loaderkit.datasets.ragged import Ragged as Ragged
    from loaderkit.datasets.records import RecordDataset as RecordDataset
    from loaderkit.datasets.shared import share as share
    from loaderkit.datasets.storage import Storage as Storage
    from loaderkit.datasets.table import TableColumns as TableColumns
    from loaderkit.datasets.tar import DECODERS as DECODERS
    from loaderkit.datasets.tar import TarDataset as TarDataset
    from loaderkit.datasets.tokens import TokenDataset as TokenDataset

_LAZY = {
    "CsvDataset": "csv",
    "DECODERS": "tar",
    "DocumentDataset": "documents",
    "HFDataset": "hf",
    "ImageFolder": "images",
    "JsonlDataset": "jsonl",
    "NpyDataset": "npy",
    "ParquetDataset": "parquet",
    "Ragged": "ragged",
    "RecordDataset": "records",
    "ShardError": "index",
    "Storage": "storage",
    "TableColumns": "table",
    "TarDataset": "tar",
    "TokenDataset": "tokens",
    "share": "shared",
}

__all__ = [
    "DECODERS",
    "ArrayDataset",
    "ConcatDataset",
    "CsvDataset",
    "DocumentDataset",
    "HFDataset",
    "ImageFolder",
    "JsonlDataset",
    "MapDataset",
    "NpyDataset",
    "ParquetDataset",
    "Ragged",
    "RecordDataset",
    "ShardError",
    "Storage",
    "SubsetDataset",
    "TableColumns",
    "TarDataset",
    "TokenDataset",
    "ZipDataset",
    "share",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'loaderkit.datasets' has no attribute {name!r}")
    return getattr(importlib.import_module(f"loaderkit.datasets.{_LAZY[name]}"), name)
