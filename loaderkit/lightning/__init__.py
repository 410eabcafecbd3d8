"""LightningDataModules whose training resumes exactly."""

from loaderkit.lightning.base import DataModule
from loaderkit.lightning.detection import DetectionDataModule
from loaderkit.lightning.images import ImageDataModule
from loaderkit.lightning.shards import ShardDataModule
from loaderkit.lightning.table import TableDataModule
from loaderkit.lightning.text import TextBatching, TextDataModule

__all__ = [
    "DataModule",
    "DetectionDataModule",
    "ImageDataModule",
    "ShardDataModule",
    "TableDataModule",
    "TextBatching",
    "TextDataModule",
]
