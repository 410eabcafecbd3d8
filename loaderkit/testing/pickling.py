"""What of a dataset does not pickle, and where it is kept."""

import io
import pickle
import types
from multiprocessing.reduction import ForkingPickler
from typing import Any

from loaderkit.testing.generators import parts_of


def find_unpicklable(value: Any, *, name: str = "dataset") -> dict[str, str]:
    """Return what can't be sent to a process that starts anew, such as {"dataset.file": "cannot pickle ..."}.

    Args:
        value: Looked through where it does not pickle, down to what is to blame.
        name: What it is called in the paths.
    """
    found: dict[str, str] = {}
    _search(value, name, set(), found)
    return found


def _search(value: Any, path: str, seen: set[int], found: dict[str, str]) -> bool:
    """Note what is to blame, and say whether the value pickles; what was met before is taken to."""
    if id(value) in seen:
        return True
    seen.add(id(value))
    error = _error(value)
    if error is None:
        return True
    blamed = False
    if not isinstance(value, types.FunctionType):  # a function pickles by its name alone, whatever it holds
        for where, part in parts_of(path, value):
            blamed |= not _search(part, where, seen, found)
    if not blamed:
        found[path] = error
    return False


class _Nowhere(io.RawIOBase):
    def write(self, content: Any) -> int:
        return len(content)


def _error(value: Any) -> str | None:
    try:
        ForkingPickler(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:  # whatever a __reduce__ raises
        return f"{type(error).__name__}: {error}"
    return None
