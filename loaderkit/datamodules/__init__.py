"""LightningDataModules whose training resumes exactly."""

from loaderkit.datamodules.base import DataModule
from loaderkit.datamodules.images import ImageDataModule
from loaderkit.datamodules.shards import ShardDataModule
from loaderkit.datamodules.table import TableDataModule
from loaderkit.datamodules.text import TextBatching, TextDataModule

__all__ = ["DataModule", "ImageDataModule", "ShardDataModule", "TableDataModule", "TextBatching", "TextDataModule"]
