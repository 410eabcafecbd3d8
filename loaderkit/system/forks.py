"""Forks that go wrong without an error: a forked process waits for a lock or a thread that only its parent has.

A fork copies one thread. If another one held a lock, nobody unlocks the copy. A forked process also frees what its
parent's other threads keep in a `threading.local`, before any code of its own runs; what is freed may wait for threads that it started.
"""

import contextlib
import gc
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

LONG_S = 30.0  # A forked process that has run nothing after this time is stuck.
_LOOK_S = 1.0  # between two looks at how much CPU time a process has used

_kept: list[object] = []  # until a fork is over
_inherited: list[object] = []  # for good: a forked process must not free it, also if it forks again


def watched_fork() -> Any:
    """Return multiprocessing's context for forks, whose processes note that they have begun; see `find_stuck`."""
    return _Context()


def find_stuck(processes: Iterable[Any]) -> Any:
    """Return a process of a `watched_fork` that sleeps before it has run anything; None if there is none. Takes up to 1 s."""
    waiting = [each for each in processes if has_not_begun(each)]
    before = [_used(each.pid) for each in waiting]
    if any(before):
        time.sleep(_LOOK_S)
    for process, used in zip(waiting, before, strict=True):
        if used is not None and used == _used(process.pid) and has_not_begun(process):
            return process
    return None


@contextlib.contextmanager
def starts_watched(processes: Sequence[Any]) -> Iterator[list[str]]:
    """Return a context to wait for processes in. One that is stuck is killed; the list gets its message.

    Args:
        processes: The processes, also those that are added later.
    """
    said: list[str] = []
    over = threading.Event()
    threading.Thread(target=_kill_stuck, args=(processes, said, over), daemon=True).start()
    try:
        yield said
    finally:
        over.set()


def _kill_stuck(processes: Sequence[Any], said: list[str], over: threading.Event) -> None:
    while not over.wait(LONG_S):
        if (stuck := find_stuck(list(processes))) is not None:
            said.append(stuck_message(stuck))
            stuck.kill()


def has_not_begun(process: Any) -> bool:
    """Return whether a process comes from a `watched_fork`, and has not begun to run."""
    return isinstance(process, _Process) and process.pid is not None and not process.begun[0]


def stuck_message(process: Any) -> str:
    """Return the message about a process that `find_stuck` has found."""
    return (
        f"loader: worker process {process.pid} was forked more than {LONG_S:g} s ago, and has not begun to run: it waits for a lock or a "
        "thread that a fork does not copy. Give multiprocessing_context='forkserver' (or 'spawn'), or start the workers before other threads."
    )


def _used(pid: int) -> str | None:
    """Return the CPU time of a process that sleeps, as text to compare; None if it does not sleep or has ended."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return " ".join(numbers[10:12]) if state == "S" else None


if sys.platform == "win32":
    _Process = _Context = type(None)
else:
    from multiprocessing.context import ForkContext, ForkProcess

    class _Process(ForkProcess):
        """A process that writes into memory which its parent sees that it has begun."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.begun = mmap.mmap(-1, mmap.PAGESIZE)

        def _bootstrap(self, *args: Any, **kwargs: Any) -> Any:
            self.begun[0] = 1
            return super()._bootstrap(*args, **kwargs)  # type: ignore[misc]  # not in its stub

    class _Context(ForkContext):
        Process = _Process


def _keep_frames_converters() -> None:
    """Keep what PyAV has for each thread. It is freed by stopping FFmpeg's threads, which a forked process does not have."""
    local = getattr(sys.modules.get("av.video.frame"), "_thread_local", None)
    for found in gc.get_referents(local) if local is not None else ():
        if isinstance(found, dict):  # one entry for each thread
            _kept.extend(found.values())


def _keep_for_good() -> None:
    _inherited.extend(_kept)
    _kept.clear()


if sys.platform != "win32":
    os.register_at_fork(before=_keep_frames_converters, after_in_parent=_kept.clear, after_in_child=_keep_for_good)
