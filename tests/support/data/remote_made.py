"""A folder in fsspec's memory, read by ranges and from copies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec

import loaderkit as lk

WAYS = ("ranges", "cache")


def put_in_memory(folder: Path, name: str) -> str:
    """Copy a folder's files, and return its URL."""
    files = fsspec.filesystem("memory")
    if files.exists(f"/{name}"):
        files.rm(f"/{name}", recursive=True)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files.pipe_file(f"/{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return f"memory://{name}"


def remote_settings(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the settings that read by ranges, then those that read from copies in a cache."""
    for way in WAYS:
        cache = folder / f"cache-{way}" if way == "cache" else None
        yield {"storage": lk.Storage(cache_dir=cache), "index_dir": folder / f"index-{way}"}
