"""Files at URLs, and their local cache."""

from loaderkit.datasets.remote.storage import Stat, Storage
from loaderkit.datasets.remote.urls import (
    INDEX_SUFFIX,
    Urls,
    expand,
    is_remote,
    open_file,
    shard_name,
    stat,
    write_atomically,
)

__all__ = [
    "INDEX_SUFFIX",
    "Stat",
    "Storage",
    "Urls",
    "expand",
    "is_remote",
    "open_file",
    "shard_name",
    "stat",
    "write_atomically",
]
