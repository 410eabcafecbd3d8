"""How worker processes start: a decision of this package, the same under each version of Python."""

import itertools
import multiprocessing
import sys
import threading
from collections import deque
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any

import torch

from loaderkit.system.object_graph import parts_of

WORKER_THREADS = "loaderkit worker"  # how the names of the threads engine's threads begin
_ACCELERATORS = ("cuda", "xpu")
# A fork leaves their threads behind, and the next call waits for ever or fails.
_DIES_IN_FORKS = {"array_record", "deltalake", "polars"}
_OBJECTS, _PARTS, _DEPTH = 400, 16, 5  # the most objects to look at, in all, in one container and in a row
_PRELOAD = ["__main__", "torch", "loaderkit.engine.ring.worker", "loaderkit.system.fork_server"]


@dataclass(frozen=True, slots=True)
class Start:
    """How worker processes start.

    Args:
        context: multiprocessing's context, which starts them.
        method: "fork", "forkserver" or "spawn".
        why: The reason.
    """

    context: Any
    method: str
    why: str

    def __str__(self) -> str:
        return f"{self.method} ({self.why})"


def choose_start(context: Any = None, work: Any = None) -> Start:
    """Choose how workers start: by fork where that is safe, else by a fork server, else by spawn.

    A method that the user chose counts: `multiprocessing_context`, or `multiprocessing.set_start_method` with another method than
    the interpreter's default. That default alone does not: it differs from version to version.

    Args:
        context: The user's `multiprocessing_context`: a context, the name of a start method, or None.
        work: What the workers receive. It is searched for objects of libraries that do not survive a fork.
    """
    if context is not None:
        chosen: Any = context if hasattr(context, "Process") else multiprocessing.get_context(context)
        return Start(chosen, str(chosen.get_start_method()), "multiprocessing_context")
    methods = multiprocessing.get_all_start_methods()  # the first is the default
    set_method = multiprocessing.get_start_method(allow_none=True)
    if set_method is not None and set_method != methods[0]:
        return Start(multiprocessing.get_context(set_method), set_method, "multiprocessing.set_start_method")
    why = _why_not_fork(work)
    if why is None:
        return Start(multiprocessing.get_context("fork"), "fork", "safe here")
    method = "forkserver" if "forkserver" in methods else "spawn"
    return Start(multiprocessing.get_context(method), method, why)


def prepare_fork_server(start: Start) -> None:
    """Let the fork server import torch once, and outlive signals to the job, unless the user told it what to import."""
    server: Any = forkserver._forkserver
    if start.method == "forkserver" and server._forkserver_pid is None and server._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload(_PRELOAD)


def _why_not_fork(work: Any) -> str | None:
    if sys.platform != "linux":
        return f"a fork is not safe on {sys.platform}"
    for name in _ACCELERATORS:
        if getattr(torch, name).is_initialized():
            return f"this process uses {name.upper()}, which a fork would break"
    if any(thread.name.startswith(WORKER_THREADS) for thread in threading.enumerate()):
        return "a loader's threads run, and a fork may copy their locks"
    if (library := _library_in(work)) is not None:
        return f"the data holds objects of {library}, which does not survive a fork"
    return None


def _library_in(work: Any) -> str | None:
    """Return the name of a library whose objects are among the first parts of a value, and which does not survive a fork."""
    if work is None or _DIES_IN_FORKS.isdisjoint(sys.modules):
        return None
    seen: set[int] = set()
    waiting = deque([(work, 0)])
    while waiting and len(seen) < _OBJECTS:
        part, depth = waiting.popleft()
        if id(part) in seen or isinstance(part, str | bytes | int | float | type | None):
            continue
        seen.add(id(part))
        library = type(part).__module__.partition(".")[0]
        if library in _DIES_IN_FORKS:
            return library
        if depth < _DEPTH:
            waiting.extend((inner, depth + 1) for _, inner in itertools.islice(parts_of("", part), _PARTS))
    return None
