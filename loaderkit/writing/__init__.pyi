# What other packages and the tests import from this package. Public names are in the root's `__init__.pyi`.

from .check import verify_shards as verify_shards
from .format import WriteError as WriteError
from .manifest import MANIFEST as MANIFEST
from .manifest import Folder as Folder
from .manifest import manifest_of as manifest_of
from .manifest import read_records as read_records
from .parquet import ParquetFormat as ParquetFormat
from .tar import TarFormat as TarFormat
from .tokens import TokenFormat as TokenFormat
from .write import write_shards as write_shards
