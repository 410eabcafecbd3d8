"""Handles that belong to a process: files, databases and sockets that neither pickle nor survive a fork."""

import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from loaderkit.process import process_id

T = TypeVar("T")
P = ParamSpec("P")

_inherited: list[Any] = []  # kept alive: a child must not close what is its parent's


class Handle(Generic[T]):
    """A handle that each process opens for itself, when it first needs it.

    For what a dataset keeps open: `h5py.File`, `lmdb.open`, `zipfile.ZipFile`, a
    connection. Call it to get the open handle. It is dropped when the dataset is
    pickled to a worker, and a forked worker opens its own: two processes on one
    would move each other's place in the file, or mix up each other's answers.

        self.file = lk.Handle(h5py.File, path, "r")
        ...
        return self.file()["images"][index]

    Args:
        open: Returns an open handle.
        args: What it is called with.
        kwargs: The same, by name.
    """

    def __init__(self, open: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> None:  # noqa: A002
        self._open, self._args, self._kwargs = open, args, kwargs
        self._handle: Any = None
        self._owner: int | None = None  # the process that opened it
        self._lock = threading.Lock()

    def __call__(self) -> T:
        if self._owner != process_id():
            if self._owner is not None:
                _leave(self._handle)
                self._reset()  # the lock may have been held at the fork
            with self._lock:
                if self._owner is None:
                    self._handle = self._open(*self._args, **self._kwargs)
                    self._owner = process_id()
        opened: T = self._handle
        return opened

    def close(self) -> None:
        """Close this process's handle, if it has a `close()`; the next call opens it again."""
        if self._owner == process_id():
            handle = self._handle
            self._reset()
            close = getattr(handle, "close", None)
            if close is not None:
                close()

    def _reset(self) -> None:
        self._handle, self._owner, self._lock = None, None, threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        # It calls itself builtins.Environment, which pickle would look for.
        opener = _open_lmdb if self._open is _lmdb("open") else self._open
        return {"_open": opener, "_args": self._args, "_kwargs": self._kwargs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __repr__(self) -> str:
        arguments = [*map(repr, self._args), *(f"{name}={value!r}" for name, value in self._kwargs.items())]
        return f"Handle({', '.join([getattr(self._open, '__qualname__', repr(self._open)), *arguments])})"


def _leave(handle: Any) -> None:
    """Let go of a handle that belongs to the process from which this one was forked."""
    environment = _lmdb("Environment")
    if environment is not None and isinstance(handle, environment):
        handle.close()  # lmdb takes this process for the one that has it open, and would refuse to open it again
    else:
        _inherited.append(handle)


def _lmdb(name: str) -> Any:
    """Return what lmdb has under a name; None where nobody has imported it."""
    return getattr(sys.modules.get("lmdb"), name, None)


def _open_lmdb(*args: Any, **kwargs: Any) -> Any:
    import lmdb  # only where it is used

    return lmdb.open(*args, **kwargs)
