"""How the ring's worker processes start, and the errors if they cannot."""

import contextlib
import errno
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any

from loaderkit.engine.batch_reader import BatchReader
from loaderkit.engine.ring.processes import Processes
from loaderkit.engine.ring.slots import Slots
from loaderkit.engine.ring.worker import PipeEnd, Worker
from loaderkit.system.pickling import explained
from loaderkit.system.threads import thread_pools


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Worker processes to start.

    Args:
        reader: Makes the batches.
        count: The number of workers.
        in_turn: Whether each has its own tasks; else the next free worker takes the next task.
        context: A start method or a context of multiprocessing; None is the platform's default.
        init: Called in each worker with its number.
    """

    reader: BatchReader
    count: int
    in_turn: bool
    context: Any
    init: Callable[[int], None] | None

    @property
    def queues(self) -> int:
        """The number of pipes for tasks."""
        return self.count if self.in_turn else 1

    def start(self, own: Processes, slots: Slots, queues: list[int]) -> Iterator[int]:
        """Start the workers; yield the pipe of each one's answers.

        Args:
            own: Takes the new processes and files.
            slots: The workers write batches there.
            queues: The workers read their tasks from these pipes.
        """
        context, method = self._context()
        if method == "forkserver":
            _preload()
        forks = method == "fork"
        pools = thread_pools() if forks else None
        for number in range(self.count):
            mine = queues[number % len(queues)]
            answers, theirs = own.pipe()
            os.set_blocking(answers, False)
            work = Worker(
                reader=self.reader,
                slots=slots,
                tasks=PipeEnd(mine),
                answers=PipeEnd(theirs),
                number=number,
                workers=self.count,
                init=self.init,
                inherited=[fd for fd in own.fds if fd not in (mine, theirs)] if forks else [],
                pools=pools,
            )
            own.start(context.Process(target=work, daemon=True, name=f"loader worker {number}"))
            own.close_fd(theirs)
            yield answers

    def check_files(self) -> None:
        """Fail now if too few files may be opened: later, multiprocessing would leak some of them."""
        opened: list[int] = []
        try:
            for _ in range(self._files):
                opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401
        finally:
            for fd in opened:
                os.close(fd)

    @contextlib.contextmanager
    def explained(self, own: Processes) -> Iterator[None]:
        """If the workers cannot start, free everything and explain why."""
        try:
            with explained(self.context, self.reader, worker_init_fn=self.init):
                yield
        except BaseException as error:
            own.close()
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise OSError(
                    error.errno,
                    f"loader: too many files are open in this process to start {self.count} workers, which take "
                    f"{self._files}. Allow more (ulimit -n), or use fewer workers.",
                ) from error
            raise

    @property
    def _files(self) -> int:
        return 4 * self.count + 2 * self.queues + 6

    def _context(self) -> tuple[Any, str]:
        context = self.context if hasattr(self.context, "Process") else multiprocessing.get_context(self.context)
        return context, context.get_start_method()


def _preload() -> None:
    """Make the fork server import torch once, unless the user told it what to import."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None and server._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload(["__main__", "torch", "loaderkit.engine.ring.worker"])
