"""Splits of folders that other tools prepared: which files belong to a split, and which of their samples do not."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from loaderkit.datasets.braces import expand_braces
from loaderkit.datasets.errors import ShardError
from loaderkit.files.foreign_formats import Found, Read, formats_at

ENERGON = ".nv-meta/split.yaml"


class FolderSplit(NamedTuple):
    """One split of a folder.

    Args:
        shards: The split's files, as paths relative to the folder.
        excluded: For each file, the keys of its samples that do not belong to the split.
    """

    shards: list[str]
    excluded: Mapping[str, frozenset[str]]


def split_names(found: Found, read: Read) -> list[str]:
    """Return the names of a folder's splits; an empty list if its format has no splits."""
    if found.key == "dataset_dict" and isinstance(found.content, dict):
        return [str(name) for name in found.content["splits"]]
    if found.key == "energon":
        return list(_energon(read, found.mark)["split_parts"])
    return []


def choose_split(folder: str, split: str, marks: Collection[str], names: Sequence[str], read: Read) -> FolderSplit:
    """Return one split of a folder.

    Args:
        folder: The folder's path, for error messages.
        split: Name of the split.
        marks: What `find_marks` found in the folder.
        names: The files in the folder that the dataset reads, as paths relative to the folder.
        read: Returns the content of a file by its relative path.

    Raises:
        ShardError: If the folder has no splits or not this one, or a file of the split is missing.
    """
    if any(found.key == "mds" for found in formats_at({f"{split}/index.json"} & set(marks), read)):
        return FolderSplit([name for name in names if name.startswith(f"{split}/")], {})
    for found in formats_at((mark for mark in marks if not mark.strip("/").count("/") or mark == ENERGON), read):
        known = split_names(found, read)
        if known and split not in known:
            raise ShardError(f"{folder}: has no split {split!r}, wanted one of {known}, as {found.mark} says.")
        if found.key == "dataset_dict":
            return FolderSplit([name for name in names if name.startswith(f"{split}/")], {})
        if found.key == "energon":
            return _energon_split(folder, split, names, _energon(read, found.mark))
    raise ShardError(
        f"{folder}: has no splits that split={split!r} could choose from, wanted dataset_dict.json (Hugging Face), {ENERGON} "
        f"(Energon) or {split}/index.json (MDS) in it. Give the folder or the files of the split, without split=."
    )


def _energon(read: Read, mark: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ImportError("Energon's split.yaml needs PyYAML: pip install pyyaml.") from error
    try:
        content = yaml.safe_load(read(mark))
    except yaml.YAMLError as error:
        raise ShardError(f"{mark}: not YAML: {error}") from error
    parts = content.get("split_parts") if isinstance(content, dict) else None
    if not isinstance(parts, dict) or not all(isinstance(part, list | None) for part in parts.values()):
        raise ShardError(f"{mark}: has no lists under split_parts, wanted what `energon prepare` writes.")
    return {
        "split_parts": {str(name): part or [] for name, part in parts.items()},
        "exclude": content.get("exclude") or [],
    }


def _energon_split(folder: str, split: str, names: Sequence[str], content: Mapping[str, Any]) -> FolderSplit:
    try:
        excluded = {name for pattern in content["exclude"] for name in expand_braces(str(pattern))}
        wanted = dict.fromkeys(
            name for pattern in content["split_parts"][split] for name in expand_braces(str(pattern))
        )
    except ValueError as error:
        raise ShardError(f"{folder}: {ENERGON}: {error}.") from error
    shards = [name for name in wanted if name not in excluded]
    if gone := sorted(set(shards) - set(names)):
        raise ShardError(
            f"{folder}: {len(gone)} of {len(shards)} files of the split {split!r} are missing, the first is {gone[0]}. Restore "
            f"them, or take them out of {ENERGON}."
        )
    keys: dict[str, set[str]] = {}
    for name in excluded - set(names):
        shard, slash, key = name.partition(".tar/")
        if slash:
            keys.setdefault(f"{shard}.tar", set()).add(key)
    return FolderSplit(shards, {shard: frozenset(found) for shard, found in keys.items() if shard in set(shards)})
