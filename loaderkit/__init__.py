"""Data loading for PyTorch that resumes anywhere: exactly once, bit for bit, on other hardware too."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import loaderkit.testing as testing
    from loaderkit.bad_samples import BadSample as BadSample
    from loaderkit.bad_samples import BadSamples as BadSamples
    from loaderkit.bad_samples import BadSamplesError as BadSamplesError
    from loaderkit.callbacks import DataWaitCallback as DataWaitCallback
    from loaderkit.callbacks import SeedSteps as SeedSteps
    from loaderkit.collate import DetectionCollate as DetectionCollate
    from loaderkit.collate import Jagged as Jagged
    from loaderkit.collate import MultimodalCollate as MultimodalCollate
    from loaderkit.collate import PackCollate as PackCollate
    from loaderkit.collate import Pad as Pad
    from loaderkit.collate import PadCollate as PadCollate
    from loaderkit.collate import RaggedCollate as RaggedCollate
    from loaderkit.collate import document_mask as document_mask
    from loaderkit.collate import unpack as unpack
    from loaderkit.collate import unpad as unpad
    from loaderkit.config import LoaderConfig as LoaderConfig
    from loaderkit.cursor import Cursor as Cursor
    from loaderkit.datamodules import DataModule as DataModule
    from loaderkit.datamodules import DetectionDataModule as DetectionDataModule
    from loaderkit.datamodules import ImageDataModule as ImageDataModule
    from loaderkit.datamodules import ShardDataModule as ShardDataModule
    from loaderkit.datamodules import TableDataModule as TableDataModule
    from loaderkit.datamodules import TextBatching as TextBatching
    from loaderkit.datamodules import TextDataModule as TextDataModule
    from loaderkit.datasets import ArrayDataset as ArrayDataset
    from loaderkit.datasets import CsvDataset as CsvDataset
    from loaderkit.datasets import DocumentDataset as DocumentDataset
    from loaderkit.datasets import HFDataset as HFDataset
    from loaderkit.datasets import ImageFolder as ImageFolder
    from loaderkit.datasets import JsonlDataset as JsonlDataset
    from loaderkit.datasets import NpyDataset as NpyDataset
    from loaderkit.datasets import ParquetDataset as ParquetDataset
    from loaderkit.datasets import Ragged as Ragged
    from loaderkit.datasets import RecordDataset as RecordDataset
    from loaderkit.datasets import ShardError as ShardError
    from loaderkit.datasets import Storage as Storage
    from loaderkit.datasets import TableColumns as TableColumns
    from loaderkit.datasets import TarDataset as TarDataset
    from loaderkit.datasets import TokenDataset as TokenDataset
    from loaderkit.datasets import share as share
    from loaderkit.device_loader import DeviceLoader as DeviceLoader
    from loaderkit.device_transforms import Normalize as Normalize
    from loaderkit.device_transforms import PadRagged as PadRagged
    from loaderkit.global_seeds import seed_worker as seed_worker
    from loaderkit.handles import Handle as Handle
    from loaderkit.length_plans import LengthBuckets as LengthBuckets
    from loaderkit.length_plans import TokenBudget as TokenBudget
    from loaderkit.lengths import measure_lengths as measure_lengths
    from loaderkit.loader import Loader as Loader
    from loaderkit.mixture import Mixture as Mixture
    from loaderkit.monitor import DataWaitMonitor as DataWaitMonitor
    from loaderkit.order import Order as Order
    from loaderkit.order import Sequential as Sequential
    from loaderkit.order import Shuffled as Shuffled
    from loaderkit.order import Subset as Subset
    from loaderkit.packing import PackPlan as PackPlan
    from loaderkit.plan import Plan as Plan
    from loaderkit.sampling import Weighted as Weighted
    from loaderkit.seeding import derive_seed as derive_seed
    from loaderkit.seeding import sample_rng as sample_rng
    from loaderkit.shard_order import ShardOrder as ShardOrder
    from loaderkit.splits import Split as Split
    from loaderkit.splits import split as split
    from loaderkit.stream import LineReader as LineReader
    from loaderkit.stream import LogReader as LogReader
    from loaderkit.stream import PageReader as PageReader
    from loaderkit.stream import StreamDataset as StreamDataset
    from loaderkit.stream import TarReader as TarReader
    from loaderkit.stream import chain as chain
    from loaderkit.stream import from_start as from_start
    from loaderkit.stream import interleave as interleave
    from loaderkit.transfer import to_device as to_device
    from loaderkit.world import World as World
    from loaderkit.writing import ParquetFormat as ParquetFormat
    from loaderkit.writing import TarFormat as TarFormat
    from loaderkit.writing import TokenFormat as TokenFormat
    from loaderkit.writing import WriteError as WriteError
    from loaderkit.writing import write_shards as write_shards

__version__ = "0.1.0"

# Loaded when they are used: `import loaderkit` does not import lightning, and takes next to no time.
_LAZY = {
    "ArrayDataset": "loaderkit.datasets",
    "BadSample": "loaderkit.bad_samples",
    "BadSamples": "loaderkit.bad_samples",
    "BadSamplesError": "loaderkit.bad_samples",
    "CsvDataset": "loaderkit.datasets",
    "Cursor": "loaderkit.cursor",
    "DataModule": "loaderkit.datamodules",
    "DataWaitCallback": "loaderkit.callbacks",
    "DataWaitMonitor": "loaderkit.monitor",
    "DetectionCollate": "loaderkit.collate",
    "DetectionDataModule": "loaderkit.datamodules",
    "DeviceLoader": "loaderkit.device_loader",
    "DocumentDataset": "loaderkit.datasets",
    "HFDataset": "loaderkit.datasets",
    "Handle": "loaderkit.handles",
    "ImageDataModule": "loaderkit.datamodules",
    "ImageFolder": "loaderkit.datasets",
    "Jagged": "loaderkit.collate",
    "JsonlDataset": "loaderkit.datasets",
    "LengthBuckets": "loaderkit.length_plans",
    "LineReader": "loaderkit.stream",
    "Loader": "loaderkit.loader",
    "LoaderConfig": "loaderkit.config",
    "LogReader": "loaderkit.stream",
    "Mixture": "loaderkit.mixture",
    "MultimodalCollate": "loaderkit.collate",
    "Normalize": "loaderkit.device_transforms",
    "NpyDataset": "loaderkit.datasets",
    "Order": "loaderkit.order",
    "PackCollate": "loaderkit.collate",
    "PackPlan": "loaderkit.packing",
    "Pad": "loaderkit.collate",
    "PadCollate": "loaderkit.collate",
    "PadRagged": "loaderkit.device_transforms",
    "PageReader": "loaderkit.stream",
    "ParquetDataset": "loaderkit.datasets",
    "ParquetFormat": "loaderkit.writing",
    "Plan": "loaderkit.plan",
    "Ragged": "loaderkit.datasets",
    "RaggedCollate": "loaderkit.collate",
    "RecordDataset": "loaderkit.datasets",
    "SeedSteps": "loaderkit.callbacks",
    "Sequential": "loaderkit.order",
    "ShardDataModule": "loaderkit.datamodules",
    "ShardError": "loaderkit.datasets",
    "ShardOrder": "loaderkit.shard_order",
    "Shuffled": "loaderkit.order",
    "Split": "loaderkit.splits",
    "Storage": "loaderkit.datasets",
    "StreamDataset": "loaderkit.stream",
    "Subset": "loaderkit.order",
    "TableColumns": "loaderkit.datasets",
    "TableDataModule": "loaderkit.datamodules",
    "TarDataset": "loaderkit.datasets",
    "TarFormat": "loaderkit.writing",
    "TarReader": "loaderkit.stream",
    "TextBatching": "loaderkit.datamodules",
    "TextDataModule": "loaderkit.datamodules",
    "TokenBudget": "loaderkit.length_plans",
    "TokenDataset": "loaderkit.datasets",
    "TokenFormat": "loaderkit.writing",
    "Weighted": "loaderkit.sampling",
    "World": "loaderkit.world",
    "WriteError": "loaderkit.writing",
    "chain": "loaderkit.stream",
    "derive_seed": "loaderkit.seeding",
    "document_mask": "loaderkit.collate",
    "from_start": "loaderkit.stream",
    "interleave": "loaderkit.stream",
    "measure_lengths": "loaderkit.lengths",
    "sample_rng": "loaderkit.seeding",
    "seed_worker": "loaderkit.global_seeds",
    "share": "loaderkit.datasets",
    "split": "loaderkit.splits",
    "testing": "loaderkit.testing",
    "to_device": "loaderkit.transfer",
    "unpack": "loaderkit.collate",
    "unpad": "loaderkit.collate",
    "write_shards": "loaderkit.writing",
}

__all__ = [
    "ArrayDataset",
    "BadSample",
    "BadSamples",
    "BadSamplesError",
    "CsvDataset",
    "Cursor",
    "DataModule",
    "DataWaitCallback",
    "DataWaitMonitor",
    "DetectionCollate",
    "DetectionDataModule",
    "DeviceLoader",
    "DocumentDataset",
    "HFDataset",
    "Handle",
    "ImageDataModule",
    "ImageFolder",
    "Jagged",
    "JsonlDataset",
    "LengthBuckets",
    "LineReader",
    "Loader",
    "LoaderConfig",
    "LogReader",
    "Mixture",
    "MultimodalCollate",
    "Normalize",
    "NpyDataset",
    "Order",
    "PackCollate",
    "PackPlan",
    "Pad",
    "PadCollate",
    "PadRagged",
    "PageReader",
    "ParquetDataset",
    "ParquetFormat",
    "Plan",
    "Ragged",
    "RaggedCollate",
    "RecordDataset",
    "SeedSteps",
    "Sequential",
    "ShardDataModule",
    "ShardError",
    "ShardOrder",
    "Shuffled",
    "Split",
    "Storage",
    "StreamDataset",
    "Subset",
    "TableColumns",
    "TableDataModule",
    "TarDataset",
    "TarFormat",
    "TarReader",
    "TextBatching",
    "TextDataModule",
    "TokenBudget",
    "TokenDataset",
    "TokenFormat",
    "Weighted",
    "World",
    "WriteError",
    "chain",
    "derive_seed",
    "document_mask",
    "from_start",
    "interleave",
    "measure_lengths",
    "sample_rng",
    "seed_worker",
    "share",
    "split",
    "testing",
    "to_device",
    "unpack",
    "unpad",
    "write_shards",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'loaderkit' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    found = module if name == "testing" else getattr(module, name)
    globals()[name] = found  # not asked again: `lk.sample_rng` is looked up for each sample
    return found
