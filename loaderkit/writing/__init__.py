"""Writing shards: any dataset to tar, Parquet or token files, restartable, the same bytes whatever the number of jobs."""

from loaderkit.writing.format import WriteError
from loaderkit.writing.parquet import ParquetFormat
from loaderkit.writing.tar import TarFormat
from loaderkit.writing.tokens import TokenFormat
from loaderkit.writing.write import write_shards

__all__ = ["ParquetFormat", "TarFormat", "TokenFormat", "WriteError", "write_shards"]
