"""Data loading for PyTorch that resumes anywhere: exactly once, bit for bit, on other hardware too."""

import importlib
from typing import TYPE_CHECKING, Any

from loaderkit.collate import Pad, PadCollate
from loaderkit.config import LoaderConfig
from loaderkit.cursor import Cursor
from loaderkit.datasets import (
    ArrayDataset,
    CsvDataset,
    HFDataset,
    ImageFolder,
    JsonlDataset,
    NpyDataset,
    ParquetDataset,
    RecordDataset,
    ShardError,
    TarDataset,
    TokenDataset,
)
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
    from loaderkit.datamodules import DataModule as DataModule

__version__ = "0.1.0"

# Loaded when they are used: `import loaderkit` does not import lightning.
_LAZY = {
    "DataModule": "loaderkit.datamodules",
    "SeedSteps": "loaderkit.callbacks",
    "testing": "loaderkit.testing",
}

__all__ = [
    "ArrayDataset",
    "CsvDataset",
    "Cursor",
    "DataModule",
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
    "RecordDataset",
    "SeedSteps",
    "Sequential",
    "ShardError",
    "ShardOrder",
    "Shuffled",
    "Subset",
    "TarDataset",
    "TokenDataset",
    "Weighted",
    "World",
    "derive_seed",
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
