"""Dataset adapters and ways to combine datasets."""

from loaderkit.datasets.array import ArrayDataset
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset, ZipDataset
from loaderkit.datasets.index import ShardError
from loaderkit.datasets.jsonl import JsonlDataset

__all__ = ["ArrayDataset", "ConcatDataset", "JsonlDataset", "MapDataset", "ShardError", "SubsetDataset", "ZipDataset"]
