"""Find files that a dataset opened before its workers fork: they would share each file's position and read wrong samples."""

import io
import itertools
import mmap
import os
import stat
import sys
import types
import warnings
from collections import deque

import numpy as np
import torch

from loaderkit.system.object_graph import parts_of
from loaderkit.system.per_thread import PerThread

_OBJECTS, _PARTS = 400, 16  # the most objects to look at, in all and in one container
_DEPTH = 5
_SAFE = (
    *(str, bytes, int, float, complex, type(None), type, types.ModuleType),
    *(torch.Tensor, np.ndarray, np.generic, mmap.mmap),  # a mapped file has no position
    PerThread,  # each process opens its own
)
_warned: set[str] = set()


def warn_of_open_files(dataset: object, method: str) -> None:
    """Warn once if workers will be forked and a file that they would share is reachable from the dataset.

    Args:
        dataset: What the workers read.
        method: How the workers start.
    """
    if method != "fork":
        return
    found = find_open_files(dataset)
    shown = ", ".join(f"{path} ({what})" for path, what in itertools.islice(found.items(), 3))
    if found and shown not in _warned:
        _warned.add(shown)
        warnings.warn(
            f"Loader: {type(dataset).__name__} has files open that forked workers would share: {shown}. They move each other's "
            "position in them, and samples may be wrong. Let each worker open its own: lk.Handle(open, path), or open it at the "
            "first read.",
            UserWarning,
            stacklevel=2,
        )


def find_open_files(value: object, *, name: str = "dataset") -> dict[str, str]:
    """Return the open files and databases that a value refers to: a dict from paths to names. Looks at up to 400 objects."""
    found: dict[str, str] = {}
    seen: set[int] = set()
    waiting = deque([(name, value, 0)])
    while waiting and len(seen) < _OBJECTS:
        path, part, depth = waiting.popleft()
        if isinstance(part, _SAFE) or id(part) in seen:
            continue
        seen.add(id(part))
        if (what := _opened(part)) is not None:
            found[path] = what
        elif depth < _DEPTH and not isinstance(part, io.IOBase):
            waiting.extend((where, inner, depth + 1) for where, inner in itertools.islice(parts_of(path, part), _PARTS))
    return found


def _opened(value: object) -> str | None:
    """Return the name of the file or database that a value has open, if forked processes would share its state."""
    if isinstance(value, io.IOBase):
        try:
            descriptor = value.fileno()
            shared = descriptor > 2 and value.readable() and stat.S_ISREG(os.fstat(descriptor).st_mode)
        except (OSError, ValueError, AttributeError):  # closed, or in memory
            return None
        return f"file {getattr(value, 'name', descriptor)!r}" if shared else None
    h5py = sys.modules.get("h5py")
    if h5py is not None and isinstance(value, h5py.File) and value:
        return f"HDF5 file {value.filename!r}"
    sqlite3 = sys.modules.get("sqlite3")
    if sqlite3 is not None and isinstance(value, sqlite3.Connection):
        try:
            names = [row[2] for row in value.execute("PRAGMA database_list") if row[2]]
        except sqlite3.Error:  # closed, or another thread's
            return None
        return f"SQLite database {names[0]!r}" if names else None
    return None
