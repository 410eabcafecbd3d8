"""Run a function in a forked process."""

import os
import signal
from collections.abc import Callable


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
