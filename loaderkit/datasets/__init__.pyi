# What other packages and the tests may use: each name is loaded when it is first used.

__all__ = [
    "DECODERS",
    "FOLDER_INDEX",
    "INDEX_SUFFIX",
    "RAISE",
    "ArrayDataset",
    "BadSample",
    "BadSampleCount",
    "BadSamples",
    "BadSamplesError",
    "Cache",
    "CachedDataset",
    "ChatDataset",
    "ConcatDataset",
    "CsvDataset",
    "DocumentDataset",
    "HFDataset",
    "Handle",
    "ImageFolder",
    "JsonlDataset",
    "LineFile",
    "LineReader",
    "LogReader",
    "MapDataset",
    "MapStyle",
    "MediaDataset",
    "MultimodalDataset",
    "NpyDataset",
    "PageReader",
    "ParquetDataset",
    "Pictures",
    "PieceDataset",
    "Place",
    "PreferenceDataset",
    "Ragged",
    "RecordDataset",
    "Reported",
    "ShardError",
    "ShardIndex",
    "ShardedDataset",
    "Split",
    "Storage",
    "StreamDataset",
    "SubsetDataset",
    "TarDataset",
    "TarReader",
    "TokenDataset",
    "TokenSpans",
    "Urls",
    "WindowDataset",
    "ZipDataset",
    "chain",
    "content_checksum",
    "decode_npy",
    "decode_picture",
    "decode_pictures",
    "end_to_end",
    "expand",
    "find_formats",
    "format_named",
    "format_of",
    "formats_of",
    "from_start",
    "in_memory",
    "index_path",
    "interleave",
    "is_frame",
    "is_remote",
    "known_suffixes",
    "knows_lengths",
    "load_index",
    "load_manifest",
    "open_file",
    "place_of",
    "portable",
    "read_many",
    "read_npy_header",
    "reads_batches",
    "reads_columns",
    "reads_many",
    "reads_pieces",
    "save_index",
    "scan_lines",
    "share",
    "split",
    "stat",
    "tokenize",
    "write_atomically",
]

from .arrow.parquet import ParquetDataset as ParquetDataset
from .bad_samples import RAISE as RAISE
from .bad_samples import BadSample as BadSample
from .bad_samples import BadSampleCount as BadSampleCount
from .bad_samples import BadSamples as BadSamples
from .bad_samples import BadSamplesError as BadSamplesError
from .bad_samples import Reported as Reported
from .bad_samples import portable as portable
from .base import MapStyle as MapStyle
from .base import is_frame as is_frame
from .base import knows_lengths as knows_lengths
from .base import read_many as read_many
from .base import reads_batches as reads_batches
from .base import reads_columns as reads_columns
from .base import reads_many as reads_many
from .base import reads_pieces as reads_pieces
from .cached import CachedDataset as CachedDataset
from .chats.dataset import ChatDataset as ChatDataset
from .chats.preferences import PreferenceDataset as PreferenceDataset
from .combine import ConcatDataset as ConcatDataset
from .combine import MapDataset as MapDataset
from .combine import SubsetDataset as SubsetDataset
from .combine import ZipDataset as ZipDataset
from .errors import ShardError as ShardError
from .formats import find_formats as find_formats
from .formats import format_named as format_named
from .formats import format_of as format_of
from .formats import formats_of as formats_of
from .formats import known_suffixes as known_suffixes
from .handles import Handle as Handle
from .hf import HFDataset as HFDataset
from .images.decode import decode_picture as decode_picture
from .images.decode import decode_pictures as decode_pictures
from .images.folder import ImageFolder as ImageFolder
from .memory.array import ArrayDataset as ArrayDataset
from .memory.array import in_memory as in_memory
from .memory.records import RecordDataset as RecordDataset
from .memory.shared import share as share
from .multimodal.dataset import MultimodalDataset as MultimodalDataset
from .multimodal.media_dataset import MediaDataset as MediaDataset
from .multimodal.pictures import Pictures as Pictures
from .pieces import PieceDataset as PieceDataset
from .places import Place as Place
from .places import place_of as place_of
from .ragged import Ragged as Ragged
from .remote.cache import Cache as Cache
from .remote.storage import Storage as Storage
from .remote.urls import INDEX_SUFFIX as INDEX_SUFFIX
from .remote.urls import Urls as Urls
from .remote.urls import expand as expand
from .remote.urls import is_remote as is_remote
from .remote.urls import open_file as open_file
from .remote.urls import stat as stat
from .remote.urls import write_atomically as write_atomically
from .shards.csv import CsvDataset as CsvDataset
from .shards.documents import DocumentDataset as DocumentDataset
from .shards.folder_index import FOLDER_INDEX as FOLDER_INDEX
from .shards.index import ShardIndex as ShardIndex
from .shards.index import content_checksum as content_checksum
from .shards.index import index_path as index_path
from .shards.index import load_index as load_index
from .shards.index import save_index as save_index
from .shards.jsonl import JsonlDataset as JsonlDataset
from .shards.lines import LineFile as LineFile
from .shards.lines import scan_lines as scan_lines
from .shards.npy import NpyDataset as NpyDataset
from .shards.npyheader import decode_npy as decode_npy
from .shards.npyheader import read_npy_header as read_npy_header
from .shards.sharded import ShardedDataset as ShardedDataset
from .shards.tokens import TokenDataset as TokenDataset
from .splits import Split as Split
from .splits import load_manifest as load_manifest
from .splits import split as split
from .streams.compose import chain as chain
from .streams.compose import interleave as interleave
from .streams.dataset import StreamDataset as StreamDataset
from .streams.dataset import from_start as from_start
from .streams.readers import LineReader as LineReader
from .streams.readers import LogReader as LogReader
from .streams.readers import PageReader as PageReader
from .streams.readers import TarReader as TarReader
from .tar.dataset import DECODERS as DECODERS
from .tar.dataset import TarDataset as TarDataset
from .texts import TokenSpans as TokenSpans
from .texts import end_to_end as end_to_end
from .texts import tokenize as tokenize
from .windows import WindowDataset as WindowDataset
