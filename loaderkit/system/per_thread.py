"""Objects that each thread opens for itself: threads that share a file handle would move its position."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_parents: list[object] = []  # handles of a parent process, kept alive: a forked child must not close them


class PerThread(threading.local, Generic[T]):
    """Gives each thread its `own` object, made at the thread's first use.

    A thread's object is freed when the thread ends, or when the PerThread is freed. A copy makes new objects, and so does a
    PerThread that was pickled.

    Args:
        make: Returns a thread's object. It must not refer to this PerThread: the two would keep each other alive.
        args: Arguments for `make`.
    """

    def __init__(self, make: Callable[..., T], *args: object) -> None:
        self._made_by = make, *args
        self.own = make(*args)

    def __reduce__(self) -> tuple[object, ...]:
        return PerThread, self._made_by


class Opened:
    """A thread's open handles by number, least recently used first. They are closed when this object is freed.

    A handle must not refer to the owner of this object: the two would keep each other alive.
    """

    def __init__(self) -> None:
        self._begin()

    def close(self) -> None:
        """Close all handles that have a `close()`."""
        _close(self.handles)

    def reset_after_fork(self, *, closing: bool) -> None:
        """Start with no handles in a forked process; close its copies of the parent's handles, or leave them open."""
        self._end.detach()
        if closing:
            self.close()
        elif self.handles:
            _parents.append(self.handles)
        self._begin()

    def _begin(self) -> None:
        self.handles: OrderedDict[int, Any] = OrderedDict()
        self.process = os.getpid()  # the process that opens them
        # Not `__del__`: if a cycle is collected, the files may be freed before the object that would close them.
        self._end = weakref.finalize(self, _close_own, self.handles, self.process)


def _close_own(handles: OrderedDict[int, object], process: int) -> None:
    # A forked child frees the objects of threads that only its parent has. Such a thread may have held a lock for a read,
    # and closing would wait for that lock.
    if os.getpid() == process:
        _close(handles)
    elif handles:
        _parents.append(handles)


def _close(handles: OrderedDict[int, object]) -> None:
    while handles:
        close = getattr(handles.popitem()[1], "close", None)
        if close is not None:
            close()
