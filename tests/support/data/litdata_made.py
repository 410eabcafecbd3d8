"""Small chunks of litdata, without the library that writes them."""

import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

LEAF = {"type": None, "context": None, "children_spec": []}


def chunk_of(items: Sequence[bytes]) -> bytes:
    """Return a chunk of items."""
    ends = [4 * (len(items) + 2)]
    for item in items:
        ends.append(ends[-1] + len(item))
    return struct.pack(f"<{len(ends) + 1}I", len(items), *ends) + b"".join(items)


def item_of(*leaves: bytes) -> bytes:
    """Return an item of leaves."""
    return struct.pack(f"<{len(leaves)}I", *map(len, leaves)) + b"".join(leaves)


def write_litdata(folder: Path, chunks: Iterable[Sequence[tuple[int, str]]]) -> Path:
    """Write chunks of samples with the leaves "n" (int) and "text" (str)."""
    listed: list[dict[str, Any]] = []
    folder.mkdir(parents=True, exist_ok=True)
    for number, samples in enumerate(chunks):
        content = chunk_of([item_of(struct.pack("<q", value), text.encode()) for value, text in samples])
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(content)
        listed.append({"chunk_bytes": len(content), "chunk_size": len(samples), "dim": None, "filename": name})
    spec = [1, {"type": "builtins.dict", "context": json.dumps(["n", "text"]), "children_spec": [LEAF, LEAF]}]
    config = {"compression": None, "data_format": ["int", "str"], "data_spec": json.dumps(spec), "encryption": None}
    config |= {"item_loader": "PyTreeLoader"}
    (folder / "index.json").write_text(json.dumps({"chunks": listed, "config": config}))
    return folder
