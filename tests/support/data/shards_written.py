"""What is in a folder of written shards, and next to it."""

from pathlib import Path
from typing import Any

import loaderkit as lk
from loaderkit.datasets.shards.folder_index import FOLDER_INDEX
from loaderkit.files.urls import side_folder
from loaderkit.writing.manifest import MANIFEST


class NeverScans(lk.TarDataset):
    """Fails where an index is missing."""

    def scan(self, shard: str) -> Any:
        raise AssertionError(f"{shard} was scanned")


def side(folder: Path) -> Path:
    """The folder of the manifest and the index of a folder of shards."""
    return Path(side_folder(str(folder)))


def manifest(folder: Path) -> Path:
    return side(folder) / MANIFEST


def folder_index(folder: Path) -> Path:
    return side(folder) / FOLDER_INDEX


def contents(folder: Path) -> dict[str, bytes]:
    """All that is visible, and the manifest. Not the indexes, which know times."""
    seen = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    assert not [path for path in seen if path.suffix == ".lkindex"]
    seen += [manifest(folder)] if manifest(folder).exists() else []
    return {path.name: path.read_bytes() for path in seen}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def as_earlier(folder: Path) -> Path:
    """Move a folder's manifest and index into it, as earlier versions wrote them."""
    for path in side(folder).iterdir():
        path.rename(folder / path.name)
    side(folder).rmdir()
    return folder
