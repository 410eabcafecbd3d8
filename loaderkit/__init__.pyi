# The public names: each is loaded when it is first used.

__all__ = [
    "DECODERS",
    "ArrayDataset",
    "AudioDataset",
    "BadSample",
    "BadSamples",
    "BadSamplesError",
    "CachedDataset",
    "ChatCollate",
    "ChatDataModule",
    "ChatDataset",
    "CollateError",
    "ConcatDataset",
    "CsvDataset",
    "Cursor",
    "DataModule",
    "DataWaitCallback",
    "DataWaitMonitor",
    "DecodePictures",
    "DetectionCollate",
    "DetectionDataModule",
    "DeviceLoader",
    "DocumentDataset",
    "Downloads",
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
    "MapDataset",
    "MediaDataset",
    "Mixture",
    "MultimodalCollate",
    "MultimodalDataset",
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
    "Patches",
    "Pictures",
    "PieceDataset",
    "Pipeline",
    "Plan",
    "PreferenceDataset",
    "Ragged",
    "RaggedCollate",
    "RayExecutor",
    "RecordDataset",
    "Retry",
    "SeedSteps",
    "Sequential",
    "ShardDataModule",
    "ShardError",
    "ShardOrder",
    "Shuffled",
    "Split",
    "Stage",
    "Stages",
    "StateError",
    "StepLog",
    "StepLogCallback",
    "Storage",
    "StreamDataset",
    "Subset",
    "SubsetDataset",
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
    "VideoDataset",
    "Weighted",
    "WidenTokens",
    "WindowDataset",
    "World",
    "WriteError",
    "ZipDataset",
    "chain",
    "derive_seed",
    "document_mask",
    "from_start",
    "index_shards",
    "integrations",
    "interleave",
    "measure_lengths",
    "merge_states",
    "pad_sequences",
    "prefetch",
    "sample_rng",
    "seed_worker",
    "share",
    "split",
    "testing",
    "to_device",
    "torch_seed",
    "unpack",
    "unpad",
    "verify_shards",
    "write_shards",
]

from . import integrations as integrations
from . import testing as testing
from .collate.chats import ChatCollate as ChatCollate
from .collate.detection import DetectionCollate as DetectionCollate
from .collate.pack import PackCollate as PackCollate
from .collate.pack import document_mask as document_mask
from .collate.pack import unpack as unpack
from .collate.pad import MultimodalCollate as MultimodalCollate
from .collate.pad import PadCollate as PadCollate
from .collate.pad import RaggedCollate as RaggedCollate
from .collate.padding import pad_sequences as pad_sequences
from .collate.padding import unpad as unpad
from .collate.patches import Patches as Patches
from .collate.rules import Jagged as Jagged
from .collate.rules import Pad as Pad
from .datasets.arrow.parquet import ParquetDataset as ParquetDataset
from .datasets.bad_samples import BadSample as BadSample
from .datasets.bad_samples import BadSamples as BadSamples
from .datasets.bad_samples import BadSamplesError as BadSamplesError
from .datasets.cached import CachedDataset as CachedDataset
from .datasets.chats.dataset import ChatDataset as ChatDataset
from .datasets.chats.preferences import PreferenceDataset as PreferenceDataset
from .datasets.combine import ConcatDataset as ConcatDataset
from .datasets.combine import MapDataset as MapDataset
from .datasets.combine import SubsetDataset as SubsetDataset
from .datasets.combine import ZipDataset as ZipDataset
from .datasets.errors import ShardError as ShardError
from .datasets.handles import Handle as Handle
from .datasets.hf import HFDataset as HFDataset
from .datasets.images.folder import ImageFolder as ImageFolder
from .datasets.indexing import index_shards as index_shards
from .datasets.media.audio_dataset import AudioDataset as AudioDataset
from .datasets.media.video_dataset import VideoDataset as VideoDataset
from .datasets.memory.array import ArrayDataset as ArrayDataset
from .datasets.memory.records import RecordDataset as RecordDataset
from .datasets.memory.shared import share as share
from .datasets.multimodal.dataset import MultimodalDataset as MultimodalDataset
from .datasets.multimodal.media_dataset import MediaDataset as MediaDataset
from .datasets.multimodal.pictures import Pictures as Pictures
from .datasets.pieces import PieceDataset as PieceDataset
from .datasets.ragged import Ragged as Ragged
from .datasets.remote.storage import Storage as Storage
from .datasets.shards.csv import CsvDataset as CsvDataset
from .datasets.shards.documents import DocumentDataset as DocumentDataset
from .datasets.shards.jsonl import JsonlDataset as JsonlDataset
from .datasets.shards.npy import NpyDataset as NpyDataset
from .datasets.shards.tokens import TokenDataset as TokenDataset
from .datasets.splits import Split as Split
from .datasets.splits import split as split
from .datasets.streams.compose import chain as chain
from .datasets.streams.compose import interleave as interleave
from .datasets.streams.dataset import StreamDataset as StreamDataset
from .datasets.streams.dataset import from_start as from_start
from .datasets.streams.readers import LineReader as LineReader
from .datasets.streams.readers import LogReader as LogReader
from .datasets.streams.readers import PageReader as PageReader
from .datasets.streams.readers import TarReader as TarReader
from .datasets.tar.dataset import DECODERS as DECODERS
from .datasets.tar.dataset import TarDataset as TarDataset
from .datasets.windows import WindowDataset as WindowDataset
from .device.prefetch import prefetch as prefetch
from .device.transforms import DecodePictures as DecodePictures
from .device.transforms import Normalize as Normalize
from .device.transforms import PadRagged as PadRagged
from .device.transforms import WidenTokens as WidenTokens
from .lightning.base import DataModule as DataModule
from .lightning.callbacks import DataWaitCallback as DataWaitCallback
from .lightning.callbacks import SeedSteps as SeedSteps
from .lightning.chats import ChatDataModule as ChatDataModule
from .lightning.detection import DetectionDataModule as DetectionDataModule
from .lightning.images import ImageDataModule as ImageDataModule
from .lightning.shards import ShardDataModule as ShardDataModule
from .lightning.step_log import StepLogCallback as StepLogCallback
from .lightning.table import TableDataModule as TableDataModule
from .lightning.tables.columns import TableColumns as TableColumns
from .lightning.text import TextDataModule as TextDataModule
from .lightning.text_batching import TextBatching as TextBatching
from .loader.config import LoaderConfig as LoaderConfig
from .loader.device_loader import DeviceLoader as DeviceLoader
from .loader.downloads import Downloads as Downloads
from .loader.lengths import measure_lengths as measure_lengths
from .loader.loader import Loader as Loader
from .loader.pipeline import Pipeline as Pipeline
from .loader.stages import Stage as Stage
from .loader.stages import Stages as Stages
from .loader.step_log import StepLog as StepLog
from .loader.streams.state import merge_states as merge_states
from .monitor import DataWaitMonitor as DataWaitMonitor
from .sampling.by_length.packing import PackPlan as PackPlan
from .sampling.by_length.plans import LengthBuckets as LengthBuckets
from .sampling.by_length.plans import TokenBudget as TokenBudget
from .sampling.cursor import Cursor as Cursor
from .sampling.mixture import Mixture as Mixture
from .sampling.order import Order as Order
from .sampling.order import Sequential as Sequential
from .sampling.order import Shuffled as Shuffled
from .sampling.order import Subset as Subset
from .sampling.plan import Plan as Plan
from .sampling.samplers import Weighted as Weighted
from .sampling.shard_order import ShardOrder as ShardOrder
from .seeding.global_seeds import seed_worker as seed_worker
from .seeding.global_seeds import torch_seed as torch_seed
from .seeding.keys import derive_seed as derive_seed
from .seeding.samples import sample_rng as sample_rng
from .system.nested import to_device as to_device
from .system.ray_executor import RayExecutor as RayExecutor
from .system.retry import Retry as Retry
from .system.stack import CollateError as CollateError
from .system.state import StateError as StateError
from .system.world import World as World
from .writing import ParquetFormat as ParquetFormat
from .writing import TarFormat as TarFormat
from .writing import TokenFormat as TokenFormat
from .writing import WriteError as WriteError
from .writing import verify_shards as verify_shards
from .writing import write_shards as write_shards

__version__: str
