"""The system resources of a team of workers, and how they are given back in any state."""

import contextlib
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from loaderkit.engine.ring.messages import TASK
from loaderkit.engine.ring.pins import Pins
from loaderkit.engine.ring.slots import STOP, Slots
from loaderkit.system.process import process_id

_GRACE_S = 1.0  # for a worker to end by itself
_TERM_S = 0.5  # to end when it is told to


class Processes:
    """Worker processes, open files and slots that one process owns. A fork of it leaves the workers alone.

    Args:
        free: The slots that are free.
    """

    def __init__(self, free: deque[int]) -> None:
        self.owner = process_id()
        self.free = free
        self.leased: set[int] = set()  # slots whose batches were yielded as views; slots in `free` are back
        self.slots: Slots | None = None
        self.pins: Pins | None = None
        self.processes: list[Any] = []
        self.watched: dict[int, int] = {}  # from a file that is ready when a worker has ended to the worker's number
        self.tasks: list[int] = []  # pipes to the workers
        self.fds: list[int] = []

    @property
    def is_here(self) -> bool:
        """Whether this process owns the workers."""
        return process_id() == self.owner

    def pipe(self) -> tuple[int, int]:
        """Open a pipe."""
        ends = os.pipe()
        self.fds += ends
        return ends

    def start(self, process: Any) -> None:
        """Start a worker, and watch it."""
        self.processes.append(process)  # first: an interrupt may come after its start
        with _Turn.lock, _interrupted_later():
            process.start()
        try:
            # Not multiprocessing's pipe: a process that the worker forks would keep it open.
            fd = os.pidfd_open(process.pid)
        except (AttributeError, ProcessLookupError):
            fd = os.dup(process.sentinel)
        self.fds.append(fd)
        self.watched[fd] = len(self.processes) - 1

    def close_fd(self, fd: int) -> None:
        """Close an open file."""
        self.fds.remove(fd)
        os.close(fd)

    def close(self) -> None:
        """Stop the workers, in the end by force, and free everything. It can be called again, also after an interrupt."""
        try:
            if self.is_here:
                self._ask()
                self._wait(_GRACE_S)
        finally:
            if self.is_here:
                self._force()
            self.watched = {}
            while self.fds:
                os.close(self.fds.pop())
            if self.pins is not None:
                self.pins.close()
            if self.slots is not None:
                if self.is_here:
                    self.slots.keep(self.leased.difference(list(self.free)))
                self.slots.close()

    def _ask(self) -> None:
        if self.slots is not None and self.tasks and self.processes:
            self.slots.wanted = STOP
            while self.tasks:
                tasks = self.tasks.pop()
                # If the pipe is full, each worker finds a task there and then sees STOP.
                with contextlib.suppress(OSError):
                    for _ in self.processes:
                        os.write(tasks, TASK.pack(-1, 0, 0))
            for fd in set(self.fds) - set(self.watched):  # a worker that waits to write an answer ends too
                self.close_fd(fd)

    def _wait(self, seconds: float) -> None:
        """Wait for workers to end."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        for fd in self.watched:
            poll.register(fd, select.POLLIN)
        left = set(self.watched)
        while left and (now := time.monotonic()) < deadline:
            for fd, _ in poll.poll(1000 * (deadline - now)):
                poll.unregister(fd)
                left.discard(fd)

    def _force(self) -> None:
        for stop in ("terminate", "kill"):
            alive = [process for process in self.processes if process.pid is not None and process.is_alive()]
            if alive:
                for process in alive:
                    getattr(process, stop)()
                self._wait(_TERM_S)
        while self.processes:
            process = self.processes.pop()
            if process.pid is not None:
                process.join(1)
            with contextlib.suppress(ValueError):  # it does not end: it hangs in the kernel
                process.close()


class _Turn:
    """One start of a process at a time: some modules, such as filelock, refuse a fork during another thread's fork."""

    lock = threading.Lock()

    @classmethod
    def reset(cls) -> None:
        cls.lock = threading.Lock()


os.register_at_fork(after_in_child=_Turn.reset)  # the thread that holds it may be missing in the child


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Delay Ctrl-C: Python loses one that comes during the functions that modules registered for a fork."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(signal.SIGINT, None)
