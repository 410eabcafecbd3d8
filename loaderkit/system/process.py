"""Whether this process may start others, or use what its parent made, and how a worker ends with its parent."""

import multiprocessing
import os
import threading
from multiprocessing import connection
from pathlib import Path
from typing import Any, NoReturn


def check_children(workers: int) -> None:
    """Check that this process may start workers; multiprocessing itself fails with a bare assertion.

    Raises:
        RuntimeError: If this process is a daemon and `workers` is not 0.
    """
    process = multiprocessing.current_process()
    if workers and process.daemon:
        raise RuntimeError(
            f"loader: num_workers is {workers}, but this process ({process.name}) is a daemon, which may not start processes. "
            "It is a worker of another loader, or was started with daemon=True. Use num_workers=0 here, or daemon=False."
        )


def refuse_in_fork(owner: int) -> NoReturn:
    """Raise RuntimeError, because this process was forked from the one that owns an iterator."""
    raise RuntimeError(
        f"loader: this iterator belongs to process {owner}, from which process {os.getpid()} was forked. "
        "Call iter(loader) in this process."
    )


def end_with_parent() -> None:
    """End this process as soon as the process that started it ends, however that ends. A thread waits for it."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    try:
        # Not multiprocessing's pipe: any other fork of the parent keeps it open.
        connection.wait([os.pidfd_open(parent.pid)])
    except AttributeError:  # not on Linux
        connection.wait([parent.sentinel])
    except OSError:  # it has ended
        pass
    os._exit(1)


def described(pid: int) -> str:
    """Return "process PID", and whether a signal has stopped it, where the system tells."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        state = b""
    return f"process {pid}" + (
        f", stopped by a signal: `kill -CONT {pid}` continues it" if state in (b"T", b"t") else ""
    )
