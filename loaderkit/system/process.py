"""Whether this process may start others, or use what its parent made, and when a worker ends."""

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from types import FrameType
from typing import NoReturn

JOB_SIGNALS = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)  # schedulers and terminals send them to all processes of a job


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


def leave_uncollected() -> None:
    """Leave all objects that this worker has so far out of garbage collections.

    A collection writes to each object, which copies all pages that a forked worker shares with its parent.
    """
    gc.freeze()


def end_with_parent() -> None:
    """End this process as soon as the process that started it ends, however that ends. A thread waits for it."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        threading.Thread(target=_end_with, args=(parent.pid, parent.sentinel), daemon=True).start()


def _end_with(pid: int, sentinel: int) -> None:
    try:
        # Not multiprocessing's pipe: any other fork of the parent keeps it open.
        connection.wait([os.pidfd_open(pid)])
    except AttributeError:  # not on Linux
        connection.wait([sentinel])
    except OSError:  # it has ended
        pass
    os._exit(1)


def outlive_signals(stopped: Callable[[], bool] = lambda: False) -> None:
    """Let a signal to the whole job end this worker only if it ends the trainer too.

    A scheduler or a terminal signals all processes of a job. If the trainer handles the signal, it still needs its workers.
    What the trainer does is looked up when the signal comes, so a handler that it installs later counts too. A forked worker
    inherits the trainer's handlers, but does not call them.

    Args:
        stopped: Says whether the trainer stops its workers. A signal then ends this one.
    """
    signal.set_wakeup_fd(-1)  # a fork shares it with the trainer
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    for number in JOB_SIGNALS:
        found = signal.getsignal(number)
        # In torch's workers SIGTERM has a handler of torch. For other signals, a handler in C, such as faulthandler's, stays.
        if (
            number == signal.SIGTERM
            or callable(found)
            or (found == signal.SIG_DFL and not _survives(os.getpid(), number))
        ):
            # Not SIG_IGN, which programs that this worker starts would inherit.
            signal.signal(number, Outlive(parent.pid, callable(found), stopped))


class Outlive:
    """A handler that lets a signal end this process, unless its parent survives that signal."""

    def __init__(self, parent: int, handled: bool = False, stopped: Callable[[], bool] = lambda: False) -> None:
        self._owner, self._parent, self._stopped = os.getpid(), parent, stopped
        self._handled = handled  # whether the parent had a handler in Python when it forked this process

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._owner and not self._stopped() and self._is_survived(number):
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _is_survived(self, number: int) -> bool:
        return _survives(self._parent, number) if Path("/proc/self/status").exists() else self._handled


def _survives(pid: int, number: int) -> bool:
    """Return whether a process catches or ignores a signal; False if the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # it has ended, or the system is not Linux
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def described(pid: int) -> str:
    """Return "process PID", and whether a signal has stopped it, if the system says so."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        state = b""
    return f"process {pid}" + (
        f", stopped by a signal: `kill -CONT {pid}` continues it" if state in (b"T", b"t") else ""
    )
