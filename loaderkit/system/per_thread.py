"""What each thread has for itself: two that read by one handle would move each other's place in the file."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from loaderkit.system.process import process_id

T = TypeVar("T")

_left: list[Any] = []  # kept alive: a child must not close what is its parent's


class PerThread(threading.local, Generic[T]):
    """An object for each thread, made when it first asks for its `own`; a copy, or a pickled one, has none yet.

    A thread's own is freed when it ends, and all of them when this is.

    Args:
        make: Returns a thread's own. What holds this would not be freed at once if it held that, too.
        args: What it is called with.
    """

    def __init__(self, make: Callable[..., T], *args: Any) -> None:
        self._made_by = make, *args
        self.own = make(*args)

    def __reduce__(self) -> Any:
        return PerThread, self._made_by


class Opened:
    """What a thread has open, by number, with what it used last at the end; closed when this is freed, by whatever thread.

    What is open must not hold what holds this, which would then never be freed.
    """

    def __init__(self) -> None:
        self._begin()

    def close(self) -> None:
        """Close all that have a `close()`."""
        _close(self.handles)

    def begin_anew(self, *, closing: bool) -> None:
        """Have nothing open, in a process that was forked: what its parent has open is closed here too, or left alone."""
        self._end.detach()
        if closing:
            self.close()
        elif self.handles:
            _left.append(self.handles)
        self._begin()

    def _begin(self) -> None:
        self.handles: OrderedDict[int, Any] = OrderedDict()
        self.process = process_id()  # that opens them
        # Not `__del__`: in a cycle that is collected the files may come before whoever would close them.
        self._end = weakref.finalize(self, _close_own, self.handles, self.process)


def _close_own(handles: OrderedDict[int, Any], process: int) -> None:
    # Not `process_id`: a fork frees what belongs to threads that it lacks before that knows of it. They may have been in the
    # midst of a read, with a lock that closing would wait for.
    if os.getpid() == process:
        _close(handles)
    elif handles:
        _left.append(handles)


def _close(handles: OrderedDict[int, Any]) -> None:
    while handles:
        close = getattr(handles.popitem()[1], "close", None)
        if close is not None:
            close()
