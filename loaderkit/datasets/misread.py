"""Refuse folders of another format whose files would be read wrongly one by one, such as the files of a Delta table."""

import os
import re
from collections.abc import Iterable, Sequence

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.folder_splits import split_names
from loaderkit.files.foreign_formats import FORMATS, Found, Read, find_marks, formats_at, join, local_reader


def refuse_misread(
    folder: str, marks: Sequence[str], shards: Sequence[str], suffixes: Sequence[str], read: Read
) -> None:
    """Raise a ShardError if a folder is of a format whose files must not be read one by one.

    Args:
        folder: The folder's path, for the error.
        marks: What `find_marks` found in the folder.
        shards: The files that would be read, as paths relative to the folder.
        suffixes: Suffixes of the files that the dataset reads.
        read: Returns the content of a file by its relative path.
    """
    for found in formats_at(marks, read):
        one = FORMATS[found.key]
        concerned = [name for name in shards if name.startswith(found.root) and name.endswith(one.misread)]
        if not concerned or not set(one.misread) & set(suffixes):
            continue
        parts = _parts(found, [name.removeprefix(found.root) for name in concerned], read)
        if parts is not None:
            raise ShardError(
                f"{join(folder, found.root)}: is {one.name}, as {found.mark} shows: {one.why}.{parts} {one.way_out}"
            )


def refuse_table(folders: Iterable[str]) -> None:
    """Raise a ShardError if a local folder of Parquet files is in a Delta or Iceberg table."""
    seen: set[str] = set()
    for folder in folders:
        place = folder
        while place not in seen:
            seen.add(place)
            inside = [f"{inner}/{name}" for inner in ("_delta_log", "metadata") for name in _list(place, inner)]
            if marks := find_marks(inside):
                refuse_misread(place or ".", marks, ["any.parquet"], [".parquet"], local_reader(place or "."))
            upper, _, name = place.rpartition("/")
            if "=" in name or name == "data":  # a partition, or Iceberg's folder of data files: look one level up
                place = upper


def _parts(found: Found, shards: list[str], read: Read) -> str | None:
    """Return the splits or fields of a folder, as a sentence for the error.

    Return None if the files may be read, as there are no several splits or fields that they could mix.
    """
    if found.key == "shar":
        matches = (re.fullmatch(r"([^/]+)\.\d+\.tar", name) for name in shards)
        fields = sorted({match[1] for match in matches if match})
        return f" Its fields: {', '.join(fields)}." if len(fields) > 1 else None
    splits = split_names(found, read)
    if found.key == "dataset_dict" and len(splits) < 2:
        return None
    return f" Its splits: {', '.join(splits)}." if splits else ""


def _list(folder: str, inner: str) -> list[str]:
    try:
        return os.listdir(f"{folder}/{inner}" if folder else inner)  # noqa: PTH208 - a Path takes longer than the call
    except OSError:
        return []
