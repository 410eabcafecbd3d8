"""Handles that belong to a thread: files, databases and sockets that neither pickle nor survive a fork."""

import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from loaderkit.system.per_thread import Opened, PerThread
from loaderkit.system.process import process_id

T = TypeVar("T")
P = ParamSpec("P")


class Handle(Generic[T]):
    """A handle that each process, and each thread in it, opens for itself when it first needs it.

    For what a dataset keeps open: `h5py.File`, `lmdb.open`, `zipfile.ZipFile`, a
    connection. Call it to get the open handle. It is dropped when the dataset is
    pickled to a worker, and a forked worker or another thread opens its own: two on one
    would move each other's place in the file, or mix up each other's answers. It is closed when
    its thread ends, or nobody has this any more.

        self.file = lk.Handle(h5py.File, path, "r")
        ...
        return self.file()["images"][index]

    An lmdb environment is one for all threads of a process, for which it is made: lmdb refuses to open a
    database twice. Let `open` return the environment itself.

    Args:
        open: Returns an open handle.
        args: What it is called with.
        kwargs: The same, by name.
    """

    def __init__(self, open: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> None:  # noqa: A002
        self._open, self._args, self._kwargs = open, args, kwargs
        self._reset()

    def __call__(self) -> T:
        own = self._opened.own
        opened: T
        if own.process == process_id() and own.handles:
            opened = own.handles[0]
        else:
            opened = self._environments.get(process_id()) or self._open_own(own)
        return opened

    def close(self) -> None:
        """Close this thread's handle, or the process's lmdb environment, if it has a `close()`; the next call opens it again."""
        own = self._opened.own
        if own.process == process_id():
            own.close()
        environment = self._environments.pop(process_id(), None)
        if environment is not None:
            environment.close()

    def _open_own(self, own: Opened) -> Any:
        process = process_id()
        if own.process != process:
            own.begin_anew(closing=False)
        # A lock of this process's own: its parent's may have been held at the fork.
        with self._locks.setdefault(process, threading.Lock()):
            if process in self._environments:  # by another thread, meanwhile
                return self._environments[process]
            for parent in list(self._environments):
                # lmdb takes this process for the one that has it open, and would refuse to open it again.
                self._environments.pop(parent).close()
            opened = self._open(*self._args, **self._kwargs)
            environment = _lmdb("Environment")
            if environment is not None and isinstance(opened, environment):
                self._environments[process] = opened
            else:
                own.handles[0] = opened
        return opened

    def _reset(self) -> None:
        self._opened = PerThread(Opened)
        # By process:
        self._environments: dict[int, Any] = {}
        self._locks: dict[int, threading.Lock] = {}

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


def _lmdb(name: str) -> Any:
    """Return what lmdb has under a name; None where nobody has imported it."""
    return getattr(sys.modules.get("lmdb"), name, None)


def _open_lmdb(*args: Any, **kwargs: Any) -> Any:
    import lmdb  # only where it is used

    return lmdb.open(*args, **kwargs)
