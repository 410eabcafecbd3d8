"""Imported by the fork server: it then survives a signal to all processes of a job as long as the trainer does.

torch's workers end with the process that forked them, which is the fork server.
"""

import os
import signal

from loaderkit.system.process import JOB_SIGNALS, Outlive


def _outlive() -> None:
    """Let signals end this process only if they end its parent, the trainer. Processes that it forks have default handlers."""
    for number in JOB_SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, Outlive(os.getppid()))
    os.register_at_fork(after_in_child=_reset)


def _reset() -> None:
    for number in JOB_SIGNALS:
        if isinstance(signal.getsignal(number), Outlive):
            signal.signal(number, signal.SIG_DFL)


_outlive()
