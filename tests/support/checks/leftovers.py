"""What a test leaves behind in the system: processes, open files, shared memory."""

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from loaderkit.system.threads import threads_run_together


def free_what_threads_had() -> None:
    """Without the GIL, the values of a `threading.local` that is freed wait for the collector of garbage."""
    if threads_run_together():
        gc.collect()


def found(pids: set[int]) -> dict[str, Any]:
    """Count children of this process, its open files and mappings of shared memory, and names of these processes in /dev/shm."""
    gc.collect()
    files = Counter(_target(fd) for fd in Path("/proc/self/fd").iterdir())
    mapped = sum("memfd:" in line or "/dev/shm" in line for line in Path("/proc/self/maps").read_text().splitlines())
    return {
        "processes": {child.pid for child in psutil.Process().children(recursive=True)},
        "files": Counter({kind: files[kind] for kind in files if kind != "gone"}),
        "mapped": Counter(mapped=mapped),
        "names": {path.name for path in Path("/dev/shm").iterdir() if pids & _numbers(path.name)},
    }


def _numbers(name: str) -> set[int]:
    """The numbers of torch_30300_2545574455_6; none of psm_23843b31, whose digits are random."""
    return {int(part) for part in name.split("_") if part.isdecimal()}


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink()).split("[")[0].split(":")[0]
    except OSError:
        return "gone"  # that of the listing itself


def more(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What there is more of than before. What earlier tests left may go meanwhile."""
    return {kind: what for kind in now if (what := now[kind] - before[kind])}


def _holders() -> str:
    """Describe what may keep processes and files: threads, processes, and what refers to multiprocessing's objects of them."""
    threads = [thread.name for thread in threading.enumerate()]
    children = [f"{child.pid} {child.status()}" for child in psutil.Process().children(recursive=True)]
    kept = [value for value in gc.get_objects() if isinstance(value, BaseProcess)]
    by = {str(value): [type(holder).__name__ for holder in gc.get_referrers(value)] for value in kept}
    return f"threads {threads}, children {children}, referrers of processes {by}"


@contextmanager
def nothing_left(seconds: float = 5) -> Iterator[None]:
    """Fail if anything is left behind so many seconds later."""
    pids = {os.getpid()}
    before = found(pids)
    yield
    deadline = time.monotonic() + seconds
    while True:
        now = found(pids)
        pids |= now["processes"]
        if not more(before, now):
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"left behind: {more(before, now)}; before {before}, now {now}; {_holders()}")
        time.sleep(0.02)
