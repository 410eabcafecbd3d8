"""The Loader under a Lightning Trainer: DataModules that resume exactly, and callbacks."""

from loaderkit.lightning.base import DataModule
from loaderkit.lightning.callbacks import DataWaitCallback, SeedSteps
from loaderkit.lightning.chats import ChatDataModule
from loaderkit.lightning.detection import DetectionDataModule
from loaderkit.lightning.images import ImageDataModule
from loaderkit.lightning.shards import ShardDataModule
from loaderkit.lightning.table import TableDataModule
from loaderkit.lightning.tables.columns import TableColumns
from loaderkit.lightning.text import TextDataModule
from loaderkit.lightning.text_batching import TextBatching

__all__ = [
    "ChatDataModule",
    "DataModule",
    "DataWaitCallback",
    "DetectionDataModule",
    "ImageDataModule",
    "SeedSteps",
    "ShardDataModule",
    "TableColumns",
    "TableDataModule",
    "TextBatching",
    "TextDataModule",
]
