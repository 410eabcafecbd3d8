"""Run a function in a forked process, and see whether a process lives."""

import os
import signal
from collections.abc import Callable

import psutil


def in_fork(function: Callable[[], bool]) -> bool:
    """Return whether the function returned True in a forked process, within a minute."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(60)
            code = 0 if function() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def lives(pid: int) -> bool:
    """Return whether a process runs. A zombie does not, nor one that ends while it is looked at."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
