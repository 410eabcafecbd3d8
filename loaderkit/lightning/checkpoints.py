"""Find the newest complete checkpoint of a run, whether a callback or SLURM's signal saved it."""

import os
import warnings
import zipfile
from pathlib import PurePosixPath

import fsspec

_SUFFIX = ".ckpt"
_OF_A_SIGNAL = "hpc_ckpt_"  # Lightning's name for what it saves at SLURM's signal
_LAST_PART = "meta.pt"  # Lightning writes it after the shards of a checkpoint that is a folder
_SHARD = ".distcp"


def newest_checkpoint(*folders: str | os.PathLike[str]) -> str | None:
    """Return the newest complete checkpoint in a run's folders, or None.

    Give it to `trainer.fit(..., ckpt_path=...)`. Lightning does not compare the kinds of checkpoints: `ckpt_path="last"`
    ignores the one that SLURM's signal saved (`hpc_ckpt_N.ckpt`), and `ckpt_path=None` prefers it to a newer `last.ckpt`.

    All files and folders named `*.ckpt` count, also those in subfolders and those that FSDP writes as folders. The newest
    is the one that was written last. An incomplete one is skipped with a warning: the run was killed while it was written.

    Args:
        folders: Folders or URLs of this run alone: the Trainer's `default_root_dir`, and the `dirpath` of each
            `ModelCheckpoint` that lies elsewhere. All nodes must see the same files.

    Raises:
        ValueError: If no folder is given.

    Examples:
        >>> lk.newest_checkpoint("runs/of-tomorrow") is None
        True
    """
    if not folders:
        raise ValueError("newest_checkpoint: no folder is given. Give the Trainer's default_root_dir.")
    found = [one for folder in folders for one in _checkpoints(os.fspath(folder))]
    for _, _, path, files, parts in sorted(found, key=lambda one: one[:3], reverse=True):
        if _is_complete(files, path, parts):
            return path if "file" in files.protocol else str(files.unstrip_protocol(path))
        warnings.warn(
            f"newest_checkpoint: {path} is incomplete: the run ended while it was written. An older one is used; delete this one.",
            stacklevel=2,
        )
    return None


def _checkpoints(folder: str) -> list[tuple[object, bool, str, fsspec.AbstractFileSystem, list[str]]]:
    """Return (time of writing, whether a signal saved it, path, file system, paths of its files) of each checkpoint."""
    files, root = fsspec.core.url_to_fs(folder)
    files.invalidate_cache()  # of listings
    root = root.rstrip("/")
    parts: dict[str, list[str]] = {}
    for path in files.find(root):
        names = path.removeprefix(root).split("/")
        row = next((row for row, name in enumerate(names) if name.endswith(_SUFFIX)), None)
        if row is not None:
            parts.setdefault(root + "/".join(names[: row + 1]), []).append(path)
    found = []
    for whole, paths in parts.items():
        try:
            written = max(map(files.modified, paths))
        except FileNotFoundError:  # a ModelCheckpoint that keeps the best deletes others
            continue
        found.append((written, PurePosixPath(whole).name.startswith(_OF_A_SIGNAL), whole, files, paths))
    return found


def _is_complete(files: fsspec.AbstractFileSystem, path: str, parts: list[str]) -> bool:
    """Return whether a checkpoint was written to its end."""
    if parts != [path]:
        names = [PurePosixPath(part).name for part in parts]
        return _LAST_PART in names or not any(name.endswith(_SHARD) for name in names)
    with files.open(path, "rb") as file:
        start = file.read(2)
        return not b"PK".startswith(start) or zipfile.is_zipfile(file)
