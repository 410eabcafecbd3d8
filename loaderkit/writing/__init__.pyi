# What other packages and the tests import from this package. Public names are in the root's `__init__.pyi`.

__all__ = [
    "MANIFEST",
    "Folder",
    "ParquetFormat",
    "TarFormat",
    "TokenFormat",
    "WriteError",
    "read_records",
    "verify_shards",
    "write_shards",
]

from .check import verify_shards
from .format import WriteError
from .manifest import MANIFEST, Folder, read_records
from .parquet import ParquetFormat
from .tar import TarFormat
from .tokens import TokenFormat
from .write import write_shards
