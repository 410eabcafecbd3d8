"""What is in a folder of written shards."""

from pathlib import Path
from typing import Any

import loaderkit as lk


class NeverScans(lk.TarDataset):
    """Fails where an index is missing."""

    def scan(self, shard: str) -> Any:
        raise AssertionError(f"{shard} was scanned")


def contents(folder: Path) -> dict[str, bytes]:
    """All that is visible, but the indexes, which know times."""
    seen = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and path.suffix != ".lkindex"]
    return {path.name: path.read_bytes() for path in seen}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]
