"""Open files, databases and connections of a dataset: one per thread, not pickled, not shared with forked processes."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from loaderkit.system.per_thread import Opened, PerThread

T = TypeVar("T")
P = ParamSpec("P")


class Handle(Generic[T]):
    """A file, database or connection that each thread opens for itself.

    Use it for what a dataset keeps open: `h5py.File`, `lmdb.open`, `zipfile.ZipFile`. Call the
    handle to get the open object; the first call opens it. The object is not pickled to workers.
    A forked worker or another thread opens its own, as two readers of one object would
    disturb each other's position. The object is closed when its thread ends, or when the
    Handle is freed.

    An lmdb environment is shared by all threads of a process, because lmdb refuses to open
    one twice. Let `open` return the environment itself.

    Args:
        open: Returns the open object.
        args: Positional arguments for `open`.
        kwargs: Keyword arguments for `open`.

    Examples:
        >>> class Lines:
        ...     def __init__(self, path):
        ...         self.file = lk.Handle(open, path)
        ...
        ...     def __len__(self):
        ...         return 2
        ...
        ...     def __getitem__(self, index):
        ...         self.file().seek(2 * index)
        ...         return self.file().read(1)
        >>> _ = Path("a.txt").write_text("a b ")
        >>> data = Lines("a.txt")
        >>> list(lk.Loader(data, batch_size=2))
        [['a', 'b']]
        >>> data.file.close()
    """

    def __init__(self, open: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> None:  # noqa: A002
        self._open, self._args, self._kwargs = open, args, kwargs
        self._reset()

    def __call__(self) -> T:
        own = self._opened.own
        opened: T
        if own.process == os.getpid() and own.handles:
            opened = own.handles[0]
        else:
            opened = self._environments.get(os.getpid()) or self._open_own(own)
        return opened

    def close(self) -> None:
        """Close this thread's open object, or the process's lmdb environment; the next call opens it again."""
        own = self._opened.own
        if own.process == os.getpid():
            own.close()
        environment = self._environments.pop(os.getpid(), None)
        if environment is not None:
            environment.close()

    def _open_own(self, own: Opened) -> Any:
        process = os.getpid()
        if own.process != process:
            own.reset_after_fork(closing=False)
        # One lock per process: another thread may have held the parent's lock at the fork.
        with self._locks.setdefault(process, threading.Lock()):
            if process in self._environments:  # another thread opened it meanwhile
                return self._environments[process]
            for parent in list(self._environments):
                # In a forked process lmdb still has the parent's environment, and would refuse to open it again.
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
        self._environments: dict[int, Any] = {}  # by process id
        self._locks: dict[int, threading.Lock] = {}  # by process id

    def __getstate__(self) -> dict[str, object]:
        # `lmdb.open` has a wrong `__module__`, so that pickle does not find it.
        opener = _open_lmdb if self._open is _lmdb("open") else self._open
        return {"_open": opener, "_args": self._args, "_kwargs": self._kwargs}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __repr__(self) -> str:
        arguments = [*map(repr, self._args), *(f"{name}={value!r}" for name, value in self._kwargs.items())]
        return f"Handle({', '.join([getattr(self._open, '__qualname__', repr(self._open)), *arguments])})"


def _lmdb(name: str) -> Any:
    """Return a member of lmdb, or None if lmdb is not imported."""
    return getattr(sys.modules.get("lmdb"), name, None)


def _open_lmdb(*args: Any, **kwargs: Any) -> Any:
    import lmdb  # optional

    return lmdb.open(*args, **kwargs)
