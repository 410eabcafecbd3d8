# The interface of the package. Each name loads when it is first used.

__all__ = [
    "MANIFEST",
    "Claim",
    "Folder",
    "Format",
    "ParquetFormat",
    "TarFormat",
    "TokenFormat",
    "WriteError",
    "Writing",
    "check_shard",
    "claims_of",
    "encode_bytes",
    "read_records",
    "write_shards",
]

from .check import Claim as Claim
from .check import check_shard as check_shard
from .check import claims_of as claims_of
from .format import Format as Format
from .format import WriteError as WriteError
from .manifest import MANIFEST as MANIFEST
from .manifest import Folder as Folder
from .manifest import read_records as read_records
from .parquet import ParquetFormat as ParquetFormat
from .tar import TarFormat as TarFormat
from .tokens import TokenFormat as TokenFormat
from .tokens import encode_bytes as encode_bytes
from .write import Writing as Writing
from .write import write_shards as write_shards
