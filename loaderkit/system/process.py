"""Whether this process may start others, or use what its parent made."""

import multiprocessing
import os
from pathlib import Path
from typing import NoReturn


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


def described(pid: int) -> str:
    """Return "process PID", and whether a signal has stopped it, where the system tells."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        state = b""
    return f"process {pid}" + (
        f", stopped by a signal: `kill -CONT {pid}` continues it" if state in (b"T", b"t") else ""
    )
