"""Dataset adapters and ways to combine datasets."""

from loaderkit.datasets.array import ArrayDataset
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset, ZipDataset

__all__ = ["ArrayDataset", "ConcatDataset", "MapDataset", "SubsetDataset", "ZipDataset"]
