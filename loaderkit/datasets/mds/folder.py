"""Read the list of shards of an MDS folder from its index.json."""

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.listed import INDEX, Listed, inner, join, natural
from loaderkit.files.foreign_formats import FORMATS
from loaderkit.files.storage import Storage
from loaderkit.files.urls import is_remote, open_file, relative_to


class Columns(NamedTuple):
    """The columns (C,) of a shard: their names, encodings, and sizes of a value in bytes (None if sizes vary)."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]


def read_index(folder: str, storage: Storage) -> list[Listed]:
    """Return the shards of a folder in the order of index.json.

    Raises:
        FileNotFoundError: If the folder has no index.json.
        ShardError: If index.json is not that of an MDS dataset. Also if there is none, but subfolders (splits) have
            one.
    """
    place = join(folder, INDEX)
    try:
        with open_file(place, storage) as file:
            content = file.read()
    except FileNotFoundError as error:
        raise _missing(folder, storage) from error
    known: dict[Columns, Columns] = {}  # equal columns are kept once for all shards
    try:
        entries = json.loads(content)["shards"]
        found = []
        for number, entry in enumerate(entries):
            _refuse_other(f"{place}: shard {number}", entry)
            found.append(_shard(entry, known))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ShardError):
            raise
        raise ShardError(
            f"{place}: not the index of {FORMATS['mds'].name}, version 2 ({type(error).__name__}: {error}). It may be cut or damaged."
        ) from error
    return found


def _shard(entry: dict[str, Any], known: dict[Columns, Columns]) -> Listed:
    columns = Columns(
        tuple(map(str, entry["column_names"])),
        tuple(map(str, entry["column_encodings"])),
        tuple(None if not size else natural(size) for size in entry["column_sizes"]),
    )
    if not len(columns.names) == len(columns.encodings) == len(columns.sizes):
        raise ValueError("names, encodings and sizes of columns differ in number")
    raw, packed = entry["raw_data"], entry.get("zip_data")
    found = Listed(
        inner(raw["basename"]),
        natural(raw["bytes"]),
        natural(entry["samples"]),
        known.setdefault(columns, columns),
    )
    if not packed:
        return found
    codec = str(entry["compression"]).partition(":")[0]
    return found._replace(packed=inner(packed["basename"]), packed_bytes=natural(packed["bytes"]), codec=codec)


def _refuse_other(where: str, entry: dict[str, object]) -> None:
    if (kind := entry.get("format", "mds")) != "mds":
        raise ShardError(
            f"{where} has the format {kind!r}, wanted 'mds'. Read it with streaming.StreamingDataset: "
            "lk.ConcatDataset([dataset]). Plain files of JSON lines are for lk.JsonlDataset, of CSV for lk.CsvDataset."
        )
    if (version := entry.get("version", 2)) != 2:
        raise ShardError(f"{where} has version {version!r}, wanted 2. Write it again with mosaicml-streaming.")


def _missing(folder: str, storage: Storage) -> Exception:
    splits = sorted(_splits(folder, storage))
    if splits:
        return ShardError(
            f"{folder}: has no {INDEX}, but the splits {', '.join(splits)}. Say which: split={splits[0]!r}."
        )
    return FileNotFoundError(
        f"{join(folder, INDEX)} is not there, wanted {FORMATS['mds'].name}: a folder with {INDEX} and shards."
    )


def _splits(folder: str, storage: Storage) -> Iterator[str]:
    """Yield the names of a folder's direct subfolders that have an index.json.

    Yield none over HTTP, which lists no folders.
    """
    found: Sequence[str]
    if not is_remote(folder):
        found = [f"{name}/{INDEX}" for name in _list(folder) if os.path.isfile(f"{folder}/{name}/{INDEX}")]  # noqa: PTH113
    elif folder.startswith(("http://", "https://")):
        found = []
    else:
        found = [relative_to(folder, url) for url in storage.find(f"{folder.rstrip('/')}/", (INDEX,))]
    yield from (name.removesuffix(f"/{INDEX}") for name in found if name.count("/") == 1)


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - of any folder, also of none
    except OSError:
        return []
