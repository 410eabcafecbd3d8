"""How worker processes start: a decision of this package, the same under each version of Python."""

import itertools
import multiprocessing
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any

import torch

from loaderkit.system.forks import watched_fork
from loaderkit.system.object_graph import parts_of

WORKER_THREADS = "loaderkit worker"  # how the names of the threads engine's threads begin
_ACCELERATORS = ("cuda", "xpu")
# A fork leaves their threads behind, and the next call waits for ever or fails.
_DIES_IN_FORKS = {"array_record", "deltalake", "polars"}
_OBJECTS, _PARTS, _DEPTH = 400, 16, 5  # the most objects to look at: in all, in one container, and on a path
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


def choose_start(context: Any = None, work: object = None) -> Start:
    """Choose how workers start: by fork where that is safe, else by a fork server, else by spawn.

    A method that the user chose is taken: by `multiprocessing_context`, or by `multiprocessing.set_start_method` if that is not the
    interpreter's default. The default itself is not taken as a choice: it differs between versions of Python.

    Args:
        context: The user's `multiprocessing_context`: a context, the name of a start method, or None.
        work: What the workers receive. It is searched for objects of libraries that do not survive a fork.

    Raises:
        ValueError: If the user asks for a fork, and a part of the data has a class with `survives_fork = False`.
    """
    frail = _first_in(work, _is_frail)
    if context is not None:
        chosen: Any = context if hasattr(context, "Process") else _context(context)
        if frail is not None and chosen.get_start_method() == "fork":
            raise ValueError(
                f"loader: multiprocessing_context is 'fork', and {type(frail).__name__} reads by a library that does not live "
                "through a fork. Leave it out, or give 'spawn' or 'forkserver'."
            )
        return Start(chosen, str(chosen.get_start_method()), "multiprocessing_context")
    methods = multiprocessing.get_all_start_methods()  # the first is the default
    set_method = multiprocessing.get_start_method(allow_none=True)
    if set_method is not None and set_method != methods[0]:
        return Start(_context(set_method), set_method, "multiprocessing.set_start_method")
    if frail is not None:  # a fork server that has imported the library is no better
        reason = f"{type(frail).__name__} reads by a library that does not live through a fork"
        return Start(multiprocessing.get_context("spawn"), "spawn", reason)
    why = _why_not_fork(work)
    if why is None:
        return Start(watched_fork(), "fork", "safe here")
    method = "forkserver" if "forkserver" in methods else "spawn"
    return Start(multiprocessing.get_context(method), method, why)


def _context(method: str) -> Any:
    return watched_fork() if method == "fork" else multiprocessing.get_context(method)


def prepare_fork_server(start: Start) -> None:
    """Let the fork server import torch once, and outlive signals to the job, unless the user told it what to import."""
    server: Any = forkserver._forkserver
    if start.method == "forkserver" and server._forkserver_pid is None and server._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload(_PRELOAD)


def _why_not_fork(work: object) -> str | None:
    if sys.platform != "linux":
        return f"a fork is not safe on {sys.platform}"
    for name in _ACCELERATORS:
        if getattr(torch, name).is_initialized():
            return f"this process uses {name.upper()}, which a fork would break"
    if any(thread.name.startswith(WORKER_THREADS) for thread in threading.enumerate()):
        return "a loader's threads run, and a fork may copy their locks"
    found = None if _DIES_IN_FORKS.isdisjoint(sys.modules) else _first_in(work, _dies_in_forks)
    if found is not None:
        return f"the data holds objects of {_library(found)}, which does not survive a fork"
    return None


def survives_fork(data: object) -> bool:
    """Return whether forked processes may read some data: whether no part of it has a class with `survives_fork = False`."""
    return _first_in(data, _is_frail) is None


def _library(part: object) -> str:
    return type(part).__module__.partition(".")[0]


def _dies_in_forks(part: object) -> bool:
    return _library(part) in _DIES_IN_FORKS


def _is_frail(part: object) -> bool:
    return getattr(type(part), "survives_fork", True) is False


def _first_in(work: object, holds: Callable[[object], bool]) -> object:
    """Return the first object for which `holds` is true, of a value and its parts; None if none is found among the first 400."""
    seen: set[int] = set()
    waiting = deque([(work, 0)])
    while waiting and len(seen) < _OBJECTS:
        part, depth = waiting.popleft()
        if id(part) in seen or isinstance(part, str | bytes | int | float | complex | type | None):
            continue
        seen.add(id(part))
        if holds(part):
            return part
        if depth < _DEPTH:
            waiting.extend((inner, depth + 1) for _, inner in itertools.islice(parts_of("", part), _PARTS))
    return None
