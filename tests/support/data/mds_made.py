"""Small MDS datasets of any samples, without the library that writes them."""

import gzip
import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def shard_of(samples: Sequence[Sequence[bytes]], fixed: Sequence[int | None]) -> bytes:
    """Return a shard of samples, which are the bytes of their columns."""
    bodies = []
    for values in samples:
        sizes = [len(value) for value, size in zip(values, fixed, strict=True) if size is None]
        bodies.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values))
    ends = [4 * (len(samples) + 2)]
    for body in bodies:
        ends.append(ends[-1] + len(body))
    return struct.pack(f"<{len(ends) + 1}I", len(samples), *ends) + b"".join(bodies)


def write_mds(folder: Path, shards: Iterable[Sequence[tuple[int, str]]], *, packed: bool = False) -> Path:
    """Write shards of samples with the columns "n" (int) and "text" (str), gzipped if `packed`."""
    entries: list[dict[str, Any]] = []
    folder.mkdir(parents=True, exist_ok=True)
    for number, samples in enumerate(shards):
        name = f"shard.{number:05}.mds"
        rows = [(value.to_bytes(8, "little", signed=True), text.encode()) for value, text in samples]
        content = shard_of(rows, (8, None))
        entry = {"column_encodings": ["int", "str"], "column_names": ["n", "text"], "column_sizes": [8, None]}
        entry |= {"compression": None, "format": "mds", "hashes": [], "samples": len(rows), "version": 2}
        entry |= {"raw_data": {"basename": name, "bytes": len(content), "hashes": {}}, "zip_data": None}
        if packed:
            name, content = f"{name}.gz", gzip.compress(content, mtime=0)
            entry |= {"compression": "gz", "zip_data": {"basename": name, "bytes": len(content), "hashes": {}}}
        (folder / name).write_bytes(content)
        entries.append(entry)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return folder
