"""How many files datasets keep open: all threads of a process share what the system allows it."""

import contextlib
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from loaderkit.system.per_thread import Opened

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]  # stands for the missing module


@dataclass(frozen=True, eq=False, slots=True)
class FileLimit:
    """How many handles the threads of a process keep for one dataset, and how many files each handle has open."""

    handles: int
    files_each: int = 1


class OpenFiles(Opened):
    """A thread's open files. It closes its own, never another thread's, which may be reading.

    The threads of a process together keep at most `limit.handles` for the dataset. All datasets together keep half of the
    files that the process may open: pipes, sockets and imports need files too. Each thread may always have one handle.
    """

    def __init__(self, limit: FileLimit) -> None:
        self.limit = limit
        super().__init__()
        with _Registry.lock:
            _Registry.known.add(self)

    def make_room(self) -> None:
        """Close the handles used longest ago until one more may be opened. Those whose `is_over` is false are closed last."""
        most = self._most()
        while len(self.handles) >= most:
            oldest = next(iter(self.handles))
            self.close_some(
                [next((number for number, one in self.handles.items() if getattr(one, "is_over", True)), oldest)]
            )

    def close_some(self, numbers: Iterable[int]) -> None:
        """Close the handles with these numbers, if there are any."""
        for number in numbers:
            close = getattr(self.handles.pop(number, None), "close", None)
            if callable(close):
                close()

    def _most(self) -> int:
        """Return how many handles this thread may have: an equal share, and no more than the others leave."""
        with _Registry.lock:
            others = [one for one in _Registry.known if one is not self and one.handles and one.process == self.process]
        siblings = [one for one in others if one.limit is self.limit]
        most, each = self.limit.handles, self.limit.files_each
        found = min(most // (len(siblings) + 1), most - sum(len(one.handles) for one in siblings))
        files = files_allowed()
        if files is not None:
            taken = sum(len(one.handles) * one.limit.files_each for one in others)
            found = min(found, files // 2 // (len(others) + 1) // each, (files // 2 - taken) // each)
        return max(1, found)


def files_allowed() -> int | None:
    """Return how many files this process may have open (the soft limit, `ulimit -n`); None if there is no limit."""
    with contextlib.suppress(AttributeError):
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return None if soft == resource.RLIM_INFINITY else soft
    return None


class _Registry:
    lock = threading.Lock()
    known: ClassVar["weakref.WeakSet[OpenFiles]"] = weakref.WeakSet()

    @classmethod
    def reset(cls) -> None:
        cls.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Registry.reset)  # the thread that holds it may be missing in the child
