"""Data loading for PyTorch that resumes anywhere: exactly once, bit for bit, on other hardware too."""

import importlib
from typing import TYPE_CHECKING, Any

from loaderkit.config import LoaderConfig
from loaderkit.cursor import Cursor
from loaderkit.datasets import ArrayDataset
from loaderkit.loader import Loader
from loaderkit.order import Order, Sequential, Shuffled, Subset
from loaderkit.plan import Plan
from loaderkit.sampling import Mixture, Weighted
from loaderkit.seeding import derive_seed, sample_rng, seed_worker
from loaderkit.shard_order import ShardOrder
from loaderkit.transfer import to_device
from loaderkit.world import World

if TYPE_CHECKING:
    import loaderkit.testing as testing
    from loaderkit.callbacks import SeedSteps as SeedSteps
    from loaderkit.collate import Pad as Pad
    from loaderkit.collate import PadCollate as PadCollate
    from loaderkit.datamodules import DataModule as DataModule
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
    from loaderkit.datasets import TarDataset as TarDataset
    from loaderkit.datasets import TokenDataset as TokenDataset
    from loaderkit.stream import StreamDataset as StreamDataset
    from loaderkit.stream import from_start as from_start

__version__ = "0.1.0"

# Loaded when they are used: `import loaderkit` does not import lightning, and takes little time.
_LAZY = {
    "CsvDataset": "loaderkit.datasets",
    "DataModule": "loaderkit.datamodules",
    "DocumentDataset": "loaderkit.datasets",
    "HFDataset": "loaderkit.datasets",
    "ImageFolder": "loaderkit.datasets",
    "JsonlDataset": "loaderkit.datasets",
    "NpyDataset": "loaderkit.datasets",
    "Pad": "loaderkit.collate",
    "PadCollate": "loaderkit.collate",
    "ParquetDataset": "loaderkit.datasets",
    "Ragged": "loaderkit.datasets",
    "RecordDataset": "loaderkit.datasets",
    "SeedSteps": "loaderkit.callbacks",
    "ShardError": "loaderkit.datasets",
    "StreamDataset": "loaderkit.stream",
    "TarDataset": "loaderkit.datasets",
    "TokenDataset": "loaderkit.datasets",
    "from_start": "loaderkit.stream",
    "testing": "loaderkit.testing",
}

__all__ = [
    "ArrayDataset",
    "CsvDataset",
    "Cursor",
    "DataModule",
    "DocumentDataset",
    "HFDataset",
    "ImageFolder",
    "JsonlDataset",
    "Loader",
    "LoaderConfig",
    "Mixture",
    "NpyDataset",
    "Order",
    "Pad",
    "PadCollate",
    "ParquetDataset",
    "Plan",
    "Ragged",
    "RecordDataset",
    "SeedSteps",
    "Sequential",
    "ShardError",
    "ShardOrder",
    "Shuffled",
    "StreamDataset",
    "Subset",
    "TarDataset",
    "TokenDataset",
    "Weighted",
    "World",
    "derive_seed",
    "from_start",
    "sample_rng",
    "seed_worker",
    "testing",
    "to_device",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'loaderkit' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    return module if name == "testing" else getattr(module, name)
