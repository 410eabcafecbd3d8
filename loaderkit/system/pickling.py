"""Find the parts of a dataset that do not pickle."""

import contextlib
import dataclasses
import io
import pickle
import types
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch import Tensor
from torch.storage import UntypedStorage

from loaderkit.system.main_program import WAYS_OUT, check_main_guard, main_file, why_it_ended
from loaderkit.system.object_graph import parts_of
from loaderkit.system.start import Start
from loaderkit.system.tensor_pickling import same

_SHOWN = 3  # paths in an error


def find_unpicklable(value: object, *, name: str = "dataset") -> dict[str, str]:
    """Return the parts of a value that cannot be pickled for a worker process, with the reason of each.

    Args:
        value: The dataset or whatever else a worker needs. Its attributes and entries are searched.
        name: The value's name in the paths.

    Returns:
        A dict from paths to errors; empty if the value pickles.

    Examples:
        >>> list(lk.testing.find_unpicklable({"size": 3, "open": lambda path: path}))
        ["dataset['open']"]
    """
    found: dict[str, str] = {}
    _search(value, name, set(), found)
    return found


@contextlib.contextmanager
def explained(start: Start, work: Any, **more: object) -> Iterator[None]:
    """Explain errors while workers start: which parts do not pickle, or what else workers that are not forked need.

    Start the workers inside the `with`. Before that, it checks that workers can import what the main program defines.

    Args:
        start: How the workers start.
        work: What the worker runs: a dataclass, whose fields are searched.
        more: Further values that the worker needs, by name.

    Raises:
        RuntimeError: If workers are not forked, and need a class or function that a notebook defines, or the main program has
            no main guard, or the fork server fails.
    """
    check_main_guard(start)
    _check_notebook(start, (work, more))
    try:
        yield
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        sent = {each.name: getattr(work, each.name) for each in dataclasses.fields(work) if each.init} | more
        found = [path for name, part in sent.items() for path in find_unpicklable(part, name=name)]
        if found and start.method != "fork":
            shown = ", ".join(found[:_SHOWN]) + " and others" * (len(found) > _SHOWN)
            error.add_note(
                f"loaderkit: {shown} {'does' if len(found) == 1 else 'do'} not pickle, and what a worker needs is pickled under "
                f"{start.method!r} ({start.why}). Define it in a module, not in a function, and open files in the worker "
                f"(loaderkit.Handle). Or {WAYS_OUT}."
            )
        raise
    except (ConnectionError, EOFError) as error:
        if start.method == "fork":
            raise
        raise RuntimeError(f"loader: the fork server ended while it started a worker. {why_it_ended(start)}") from error


def _check_notebook(start: Start, work: object) -> None:
    if start.method == "fork" or main_file() is not None:
        return
    finder = _MainFinder()
    with contextlib.suppress(Exception):  # what does not pickle has its own error
        finder.dump(work)
    if finder.names:
        raise RuntimeError(
            f"loader: {', '.join(sorted(finder.names))} is defined in this notebook, and workers started by {start.method!r} cannot "
            f"import it ({start.why}). Move it to a module (a .py file) and import it from there, or {WAYS_OUT}."
        )


def _search(value: object, path: str, seen: set[int], found: dict[str, str]) -> bool:
    """Add the smallest parts that do not pickle to `found`; return whether the value pickles."""
    if id(value) in seen:
        return True
    seen.add(id(value))
    error = _error(value)
    if error is None:
        return True
    blamed = False
    if not isinstance(value, types.FunctionType):  # a function pickles by its name, whatever it holds
        for where, part in parts_of(path, value):
            blamed |= not _search(part, where, seen, found)
    if not blamed:
        found[path] = error
    return False


class _Nowhere(io.RawIOBase):
    def write(self, content: Any) -> int:
        return memoryview(content).nbytes  # a large array comes as a PickleBuffer, which has no len()


class _Trial(ForkingPickler):
    """Pickles as for another process and drops the result. Unlike torch's, it does not move tensors into shared memory."""

    def __init__(self) -> None:
        super().__init__(_Nowhere(), pickle.HIGHEST_PROTOCOL)

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, Tensor) and (
            value.is_leaf or not value.requires_grad
        ):  # torch refuses others, and says why
            return same, ((type(value), vars(value)),)
        return (same, (None,)) if isinstance(value, UntypedStorage) else NotImplemented


class _MainFinder(_Trial):
    """Collects the names of pickled classes and functions that the main program defines."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__":
            self.names.add(value.__qualname__)
        return super().reducer_override(value)


def _error(value: object) -> str | None:
    try:
        _Trial().dump(value)
    except Exception as error:  # whatever a __reduce__ raises
        return f"{type(error).__name__}: {error}"
    return None


@contextlib.contextmanager
def sendable_errors() -> Iterator[None]:
    """Replace an error raised inside the `with` by a RuntimeError if torch could not raise it again in the trainer.

    torch sends an error's type and message, and calls the type in the trainer: with `message=` if the type has an attribute
    `message`, as ExceptionGroup has. If pickling the type or that call fails, the error is lost.
    """
    try:
        yield
    except Exception as error:
        kind: Any = type(error)
        try:
            ForkingPickler.dumps(kind)
            if getattr(kind, "message", None) and kind is not KeyError:
                kind(message="")
        except Exception:
            raise RuntimeError(f"{type(error).__qualname__}: {error}") from error
        raise
