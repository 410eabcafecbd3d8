"""What of a dataset does not pickle, and where it is kept."""

import dataclasses
import functools
import io
import multiprocessing
import pickle
import types
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import Any

_ENTRIES = 1_000  # of a container; samples kept in a list are alike
_SHOWN = 3  # paths in an error


def find_unpicklable(value: Any, *, name: str = "dataset") -> dict[str, str]:
    """Return what can't be sent to a process that starts anew, such as {"dataset.file": "cannot pickle ..."}.

    Args:
        value: Looked through where it does not pickle, down to what is to blame.
        name: What it is called in the paths.
    """
    found: dict[str, str] = {}
    _search(value, name, set(), found)
    return found


@contextmanager
def explained(context: Any, work: Any, **more: Any) -> Iterator[None]:
    """Where a worker can't be started because something does not pickle, note in the error what, and where it is kept.

    Args:
        context: How it is started, as multiprocessing has it.
        work: What it runs, a dataclass.
        more: Of what it needs, by name.
    """
    try:
        yield
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        method = _start_method(context)
        sent = {each.name: getattr(work, each.name) for each in dataclasses.fields(work) if each.init} | more
        found = [path for name, part in sent.items() for path in find_unpicklable(part, name=name)]
        if found and method != "fork":
            shown = ", ".join(found[:_SHOWN]) + " and others" * (len(found) > _SHOWN)
            error.add_note(
                f"loaderkit: {shown} {'does' if len(found) == 1 else 'do'} not pickle, and what a worker needs is pickled under "
                f"{method!r}: define it in a module, not in a function, and open files in the worker (loaderkit.Handle)."
            )
        raise


def _start_method(context: Any) -> str:
    """Return how processes are started."""
    chosen = context if hasattr(context, "get_start_method") else multiprocessing.get_context(context)
    return str(chosen.get_start_method())


def parts_of(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, by the path that leads there."""
    # Not any Mapping or Sequence: one may read a file for each entry.
    if isinstance(value, dict):
        for key, entry in islice(value.items(), _ENTRIES):
            yield f"{path}[{key!r}]", entry
    elif isinstance(value, (list, tuple, deque)):
        for index, entry in enumerate(islice(value, _ENTRIES)):
            yield f"{path}[{index}]", entry
    elif isinstance(value, (set, frozenset)):
        for entry in islice(value, _ENTRIES):
            yield f"{path}{{...}}", entry
    if isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f"{path}.<{variable}>", cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield f"{path}.__defaults__", value.__defaults__
        yield f"{path}.__kwdefaults__", value.__kwdefaults__
    for attribute, entry in _attributes(value):
        yield f"{path}.{attribute}", entry


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(kind.__dict__.get(name), types.MemberDescriptorType) and hasattr(value, name):
                yield name, getattr(value, name)


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
