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
    "check_each",
    "claims_of",
    "encode_bytes",
    "read_records",
    "verify_shards",
    "write_shards",
]

from .check import Claim, check_each, claims_of, verify_shards
from .format import Format, WriteError
from .manifest import MANIFEST, Folder, read_records
from .parquet import ParquetFormat
from .tar import TarFormat
from .tokens import TokenFormat, encode_bytes
from .write import Writing, write_shards
