"""Which process this is, and whether it may start others."""

import multiprocessing
import os
from typing import NoReturn


class _Process:
    id = os.getpid()


def process_id() -> int:
    """Return this process's id, also in one that was forked. Asking the system takes 0.4 us, and some ask for each sample."""
    return _Process.id


def check_children(workers: int) -> None:
    """Check that this process may start workers; multiprocessing would say so by an assertion, in the middle of its own.

    Raises:
        RuntimeError: If it may not.
    """
    process = multiprocessing.current_process()
    if workers and process.daemon:
        raise RuntimeError(
            f"loader: num_workers is {workers}, and this process ({process.name}) is a daemon, which may start no others: "
            "a worker of another loader, or one that was started with daemon=True. Use num_workers=0 here, or daemon=False."
        )


def refuse_in_fork(owner: int) -> NoReturn:
    """Raise RuntimeError, in a process that was forked from the one that an iterator belongs to."""
    raise RuntimeError(
        f"loader: this iterator belongs to process {owner}, from which process {os.getpid()} was forked. "
        "Call iter(loader) here."
    )


def _ask() -> None:
    _Process.id = os.getpid()


os.register_at_fork(after_in_child=_ask)
