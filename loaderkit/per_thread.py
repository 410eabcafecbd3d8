"""What each thread has for itself: two that read by one handle would move each other's place in the file."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from loaderkit.process import process_id

T = TypeVar("T")


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
    """What a thread has open, by number, with what it used last at the end; closed when this is freed, by whatever thread."""

    _left: ClassVar[list[Any]] = []  # kept alive: a child must not close what is its parent's
    # Not `process_id`, as a fork frees what belongs to threads that it lacks before that knows of it.
    _process_now = staticmethod(os.getpid)

    def __init__(self) -> None:
        self.handles: OrderedDict[int, Any] = OrderedDict()
        self.process = process_id()  # that opens them

    def close(self) -> None:
        """Close all that have a `close()`."""
        while self.handles:
            close = getattr(self.handles.popitem()[1], "close", None)
            if close is not None:  # by no name of the module: at the interpreter's end they are gone
                close()

    def leave(self) -> None:
        """Begin anew in a process that was forked, and leave alone what its parent has open."""
        if self.handles:
            self._left.append(self.handles)
        self.handles, self.process = OrderedDict(), process_id()

    def __del__(self) -> None:
        if self._process_now() == self.process:
            self.close()
        elif self.handles:  # its thread may have been in the midst of a read, with a lock that closing would wait for
            self._left.append(self.handles)
