# What other packages and the tests import from this package. Public names are in the root's `__init__.pyi`.

__all__ = [
    "DECODERS",
    "FOLDER_INDEX",
    "INDEX_SUFFIX",
    "BadSampleCount",
    "Cache",
    "ConcatDataset",
    "ImageFolder",
    "JsonlDataset",
    "LineFile",
    "MapDataset",
    "MapStyle",
    "PieceDataset",
    "Place",
    "Ragged",
    "Reported",
    "ShardError",
    "ShardIndex",
    "ShardedDataset",
    "Storage",
    "StreamDataset",
    "SubsetDataset",
    "TokenSpans",
    "ZipDataset",
    "decode_npy",
    "decode_picture",
    "decode_pictures",
    "expand",
    "find_formats",
    "format_named",
    "format_of",
    "index_path",
    "is_frame",
    "is_remote",
    "knows_lengths",
    "load_index",
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
    "stat",
    "write_atomically",
]

from .bad_samples import BadSampleCount as BadSampleCount
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
from .combine import ConcatDataset as ConcatDataset
from .combine import MapDataset as MapDataset
from .combine import SubsetDataset as SubsetDataset
from .combine import ZipDataset as ZipDataset
from .errors import ShardError as ShardError
from .formats import find_formats as find_formats
from .formats import format_named as format_named
from .formats import format_of as format_of
from .images.decode import decode_picture as decode_picture
from .images.decode import decode_pictures as decode_pictures
from .images.folder import ImageFolder as ImageFolder
from .pieces import PieceDataset as PieceDataset
from .places import Place as Place
from .places import place_of as place_of
from .ragged import Ragged as Ragged
from .remote.cache import Cache as Cache
from .remote.storage import Storage as Storage
from .remote.urls import INDEX_SUFFIX as INDEX_SUFFIX
from .remote.urls import expand as expand
from .remote.urls import is_remote as is_remote
from .remote.urls import open_file as open_file
from .remote.urls import stat as stat
from .remote.urls import write_atomically as write_atomically
from .shards.folder_index import FOLDER_INDEX as FOLDER_INDEX
from .shards.index import ShardIndex as ShardIndex
from .shards.index import index_path as index_path
from .shards.index import load_index as load_index
from .shards.index import save_index as save_index
from .shards.jsonl import JsonlDataset as JsonlDataset
from .shards.lines import LineFile as LineFile
from .shards.lines import scan_lines as scan_lines
from .shards.npyheader import decode_npy as decode_npy
from .shards.npyheader import read_npy_header as read_npy_header
from .shards.sharded import ShardedDataset as ShardedDataset
from .streams.dataset import StreamDataset as StreamDataset
from .tar.dataset import DECODERS as DECODERS
from .texts import TokenSpans as TokenSpans
