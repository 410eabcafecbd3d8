"""Start worker processes, and give back all that they take from the system, whatever happens."""

import contextlib
import errno
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from loaderkit.engine.ring.messages import TASK
from loaderkit.engine.ring.pins import Pins
from loaderkit.engine.ring.slots import STOP, Slots
from loaderkit.engine.ring.worker import PipeEnd, Worker
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.seeding.keys import derive_seed
from loaderkit.system.open_before_fork import warn_of_open_files
from loaderkit.system.parcel import Parcel
from loaderkit.system.pickling import explained
from loaderkit.system.process import JOB_SIGNALS
from loaderkit.system.start import Start, prepare_fork_server
from loaderkit.system.threads import thread_pools

_GRACE_S = 1.0  # time for a worker to end by itself
_TERM_S = 0.5  # time for a worker to end after SIGTERM or SIGKILL


class Processes:
    """Worker processes, open files and slots that one process owns. A fork of it leaves the workers alone."""

    def __init__(self, free: deque[int]) -> None:
        self.owner = os.getpid()
        self.free = free
        self.leased: set[int] = set()  # slots whose batches were yielded as views; slots in `free` are back
        self.slots: Slots | None = None
        self.pins: Pins | None = None
        self.processes: list[Any] = []
        self.watched: dict[int, int] = {}  # worker numbers, by a file descriptor that is ready once the worker ends
        self.tasks: list[int] = []  # pipes to the workers
        self.fds: list[int] = []

    @property
    def is_here(self) -> bool:
        """Whether this process owns the workers."""
        return os.getpid() == self.owner

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self.fds += ends
        return ends

    def start(self, process: Any) -> None:
        """Start a worker, and watch it."""
        self.processes.append(process)  # first: an interrupt may come after its start
        with _Turn.lock, _signals_later():
            process.start()
        try:
            # Not multiprocessing's pipe: a process that the worker forks would keep it open.
            fd = os.pidfd_open(process.pid)
        except (AttributeError, ProcessLookupError):
            fd = os.dup(process.sentinel)
        self.fds.append(fd)
        self.watched[fd] = len(self.processes) - 1

    def close_fd(self, fd: int) -> None:
        self.fds.remove(fd)
        os.close(fd)

    def close(self) -> None:
        """Stop the workers, in the end by force, and free everything. May be called again, also after an interrupt."""
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
            self.slots.wanted[0] = STOP
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
            with contextlib.suppress(ValueError):  # the process has not ended: it hangs in the kernel
                process.close()


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Worker processes to start."""

    reader: BatchReader
    count: int
    seed: int  # each worker's seed comes from this one and the worker's number
    in_turn: bool  # tasks are dealt to the workers in turn; else the next free worker takes the next task
    how: Start  # how the workers are started
    init: Callable[[int], None] | None  # called in each worker with the worker's number

    @property
    def queues(self) -> int:
        """The number of pipes for tasks."""
        return self.count if self.in_turn else 1

    def start(self, own: Processes, slots: Slots, queues: list[int]) -> Iterator[int]:
        """Start the workers, which read tasks from the pipes `queues`. Yield the pipe with each worker's answers."""
        forks = self.how.method == "fork"
        pools = thread_pools() if forks else None
        warn_of_open_files(self.reader.dataset, self.how.method)
        prepare_fork_server(self.how)
        parcel: Any = None if forks else Parcel(self.reader)
        with contextlib.nullcontext() if forks else contextlib.closing(parcel):
            yield from self._start_each(own, slots, queues, parcel, pools)

    def _start_each(self, own: Processes, slots: Slots, queues: list[int], parcel: Any, pools: object) -> Iterator[int]:
        for number in range(self.count):
            mine = queues[number % len(queues)]
            answers, theirs = own.pipe()
            os.set_blocking(answers, False)
            work = Worker(
                reader=parcel or self.reader,
                slots=slots,
                tasks=PipeEnd(mine),
                answers=PipeEnd(theirs),
                number=number,
                workers=self.count,
                seed=derive_seed("ring", self.seed, number),
                init=self.init,
                inherited=[] if parcel else [fd for fd in own.fds if fd not in (mine, theirs)],
                pools=pools,
            )
            own.start(self.how.context.Process(target=work, daemon=True, name=f"loader worker {number}"))
            own.close_fd(theirs)
            yield answers

    def check_files(self) -> None:
        """Raise an OSError if too few files may be opened. On a later error, multiprocessing leaks some."""
        opened: list[int] = []
        try:
            for _ in range(self._files):
                opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401
        finally:
            for fd in opened:
                os.close(fd)

    @contextlib.contextmanager
    def explained(self, own: Processes) -> Iterator[None]:
        """Return a context to start workers in. If they cannot start, free everything and say why in the error."""
        try:
            with explained(self.how, self.reader, worker_init_fn=self.init):
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


class _Turn:
    """The lock that allows one start of a process at a time: some modules, such as filelock, refuse two at once."""

    lock = threading.Lock()

    @classmethod
    def reset(cls) -> None:
        cls.lock = threading.Lock()


os.register_at_fork(after_in_child=_Turn.reset)  # the thread that holds it may be missing in the child


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Return a context in which handlers of signals, such as Ctrl-C, are delayed to its end.

    If a handler raised an error while a process starts, nothing would know of that process. And Python drops errors
    that are raised in functions that modules registered for a fork.
    """
    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    stack.enter_context(_delayed(number, handler))
        yield


@contextlib.contextmanager
def _delayed(number: int, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Return a context in which a signal's handler is delayed. If the signal came, the handler is called at the end."""
    owner = os.getpid()
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if os.getpid() == owner or number in (
            signal.SIGINT,
            *JOB_SIGNALS,
        ):  # a worker does not handle them as its trainer
            came = True
        else:
            handler(number, frame)

    try:
        signal.signal(number, note)
        yield
    finally:
        signal.signal(number, handler)
        if came:
            handler(number, None)
