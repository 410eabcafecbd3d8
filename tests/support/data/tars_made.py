"""Tar shards as webdataset writes them."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webdataset.tariterators import group_by_keys, tar_file_expander

Files = Sequence[tuple[str, bytes]]


def read_by_webdataset(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        found = list(group_by_keys(tar_file_expander([{"url": str(path), "stream": file}])))
    return [{name: value for name, value in entry.items() if name != "__url__"} for entry in found]


def make(path: Path, files: Files, kind: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=kind) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content), kind, link
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)
