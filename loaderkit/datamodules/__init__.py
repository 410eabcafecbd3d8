"""LightningDataModules whose training resumes exactly."""

from loaderkit.datamodules.base import DataModule
from loaderkit.datamodules.detection import DetectionDataModule
from loaderkit.datamodules.images import ImageDataModule
from loaderkit.datamodules.shards import ShardDataModule
from loaderkit.datamodules.table import TableDataModule
from loaderkit.datamodules.text import TextBatching, TextDataModule

__all__ = [
    "DataModule",
    "DetectionDataModule",
    "ImageDataModule",
    "ShardDataModule",
    "TableDataModule",
    "TextBatching",
    "TextDataModule",
]
