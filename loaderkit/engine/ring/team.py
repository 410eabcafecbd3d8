"""The ring's worker processes, as the loader sees them: tasks go out, answers come in, none is waited for in vain."""

import errno
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import time
from collections import deque
from functools import partial
from multiprocessing import forkserver, util
from typing import Any, NamedTuple

from loaderkit.engine.ring.layout import read
from loaderkit.engine.ring.pins import Pins
from loaderkit.engine.ring.processes import Processes
from loaderkit.engine.ring.slots import Slots
from loaderkit.engine.ring.worker import ANSWER, FAILED, IN_SLOT, TASK, PipeEnd, Worker, raise_again

_IDLE = 64  # tasks without it, after which a slot gives its memory back


class Answer(NamedTuple):
    """What a worker made of a task."""

    number: int
    slot: int
    kind: int
    size: int  # bytes of the slot, or of the image in its place
    structure: bytes
    image: bytes


class WorkerDied(RuntimeError):  # noqa: N818 - what happened
    """A worker process ended without being asked to.

    Attributes:
        number: Of the task that it had; -1 if it had none.
    """

    number = -1


class Team:
    """Worker processes, their slots and the pipes to them.

    Args:
        feed: What they run.
        workers: How many.
        slots: How many batches are under way or in use at most.
        in_turn: Whether each worker has tasks of its own; else whoever is free takes the next.
        context: How processes are started, as multiprocessing has it.
        init: Called in each with its number.
        cudart: CUDA's runtime, where slots are to be page-locked; see Pins for what the batches' user has to do then.

    Raises:
        OSError: If there is no memory, or too many files are open.
    """

    def __init__(
        self, feed: Any, *, workers: int, slots: int, in_turn: bool, context: Any, init: Any, cudart: Any = None
    ) -> None:
        if not hasattr(context, "Process"):
            context = multiprocessing.get_context(context)
        method = context.get_start_method()
        if method == "forkserver":
            _preload()
        self.free: deque[int] = deque(range(slots))
        self._used = [0] * slots  # the last task of each
        self._poll = select.poll()
        self._inboxes: dict[int, _Inbox] = {}
        self._own = own = Processes()
        queues = workers if in_turn else 1
        files = _files(workers, queues)
        # Closes it when the team is forgotten, and at the interpreter's end before multiprocessing waits for processes.
        util.Finalize(self, own.close, exitpriority=100)
        try:
            _check_files(files)
            own.slots = self.slots = Slots(slots, workers)
            own.pins = self.pins = None if cudart is None else Pins(self.slots, cudart)
            # Leases must not hold the team.
            self._freed = self.free.append if self.pins is None else partial(_free, self.free, self.pins)
            tasks = []
            for _ in range(queues):
                reading, writing = own.pipe()  # both stay open: to write to a worker that has ended is no error here
                os.set_blocking(writing, False)
                tasks.append(reading)
                own.tasks.append(writing)
            for number in range(workers):
                mine = tasks[number % queues]
                answers, theirs = own.pipe()
                os.set_blocking(answers, False)
                work = Worker(
                    feed=feed,
                    slots=self.slots,
                    tasks=PipeEnd(mine),
                    answers=PipeEnd(theirs),
                    number=number,
                    workers=workers,
                    init=init,
                    inherited=[fd for fd in own.fds if fd not in (mine, theirs)] if method == "fork" else [],
                )
                own.start(context.Process(target=work, daemon=True, name=f"loader worker {number}"))
                own.close_fd(theirs)
                self._inboxes[answers] = _Inbox(answers)
                self._poll.register(answers, select.POLLIN)
            for fd in own.watched:
                self._poll.register(fd, select.POLLIN)
        except BaseException as error:
            own.close()
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                raise OSError(
                    error.errno,
                    f"loader: too many files are open in this process to start {workers} workers, which take "
                    f"{files}. Allow more (ulimit -n), or use fewer workers.",
                ) from error
            if isinstance(error, pickle.PicklingError | AttributeError | TypeError):
                error.add_note(
                    "loaderkit: raised while a worker was started. What it needs (dataset, collate_fn, worker_init_fn) "
                    f"is pickled under {method!r}: define it in a module, not in a function, and open files in the worker."
                )
            raise

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [process.pid for process in self._own.processes]

    @property
    def is_here(self) -> bool:
        """Whether it belongs to this process, not to the one that this was forked from."""
        return self._own.is_here

    def forget_before(self, number: int) -> None:
        """Have workers pass over tasks of lower numbers."""
        self.slots.wanted = number

    def check_workers(self) -> None:
        """Raise WorkerDied if a worker has ended; the others might make all batches, so that nobody would hear of it."""
        dead = [fd for fd, _ in self._poll.poll(0) if fd in self._own.watched]
        if dead:
            raise self._obituary(self._own.watched[dead[0]])

    def submit(self, number: int, key: bytes, turn: int) -> bool:
        """Hand out a task, into a slot that is free; say whether there was one, and place in the pipe.

        Args:
            number: Of the task.
            key: Of its batch.
            turn: Whose it is, where tasks are dealt in turn: that of the worker of this number, modulo the workers.

        Raises:
            OSError: If there is no memory left.
        """
        if not self.free:
            return False
        slot = self.free.pop()  # freed last: it is in the caches still
        size = self.slots.excess(slot)
        if size is not None:
            self._cut(slot, max(size, len(key)))
        self._used[slot] = number
        if number % _IDLE == 0:
            for idle in self.free:
                if number - self._used[idle] >= _IDLE and self.slots.is_large(idle):
                    self._cut(idle, mmap.PAGESIZE)
        try:
            self.slots.put_key(slot, key)
        except OSError as error:
            self.free.append(slot)
            raise OSError(
                error.errno, f"loader: no memory left for a batch's key of {len(key):,} bytes: {error.strerror}."
            ) from error
        try:
            os.write(self._own.tasks[turn % len(self._own.tasks)], TASK.pack(number, slot, len(key)))
        except BlockingIOError:
            self.free.append(slot)
            return False
        return True

    def _cut(self, slot: int, size: int) -> None:
        if self.pins is not None:
            self.pins.unpin(slot)
        self.slots.cut(slot, size)

    def receive(self, timeout_s: float | None) -> list[Answer]:
        """Wait for answers.

        Args:
            timeout_s: How long at most; None is for ever.

        Returns:
            At least one answer; none if the time is over.

        Raises:
            WorkerDied: If a worker ended, and no answer is there.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic()))
            ready = [fd for fd, _ in self._poll.poll(left)]
            if not ready:
                return []
            # Of a worker that has ended, what it sent may have come after its pipe was looked at.
            dead = [fd for fd in ready if fd in self._own.watched]
            answers = []
            for fd, inbox in self._inboxes.items():
                if (dead or fd in ready) and not inbox.ended:
                    answers += inbox.read()
                    if inbox.ended:
                        self._poll.unregister(fd)
            if answers:
                return answers
            if dead:
                raise self._obituary(self._own.watched[dead[0]])

    def open(self, answer: Answer, *, copied: bool) -> tuple[Any, bool]:
        """Make the batch of an answer: a view of its slot, or a copy. The slot is free when it is not needed any more.

        Returns:
            The batch, and whether its tensors are page-locked.

        Raises:
            Exception: What the worker raised instead, or what unpickling the batch raises.
        """
        slots, slot = self.slots, answer.slot
        if answer.kind == IN_SLOT:
            slots.note(slot, answer.size)
            if not copied and answer.size:
                pinned = self.pins is not None and self.pins.lease(slot, answer.size)
                # What stays on the host when the tensors go to the device must not hold the slot.
                return read(answer.structure, slots.lease(slot, self._freed), own_buffers=pinned), pinned
            memory = bytearray(slots.bytes(slot, answer.size))
        else:
            memory = bytearray(answer.image)
        self.free.append(slot)
        if answer.kind == FAILED:
            raise_again(answer.structure)
        return read(answer.structure, memory), False

    def drop(self, answer: Answer) -> None:
        """Free the slot of an answer that nobody wants."""
        self.free.append(answer.slot)

    def close(self) -> None:
        """Stop the workers, those too that are busy; slots in use stay until their views are gone."""
        self._own.close()

    def check_owner(self) -> None:
        """Raise RuntimeError in a process that was forked from the one that it belongs to."""
        if os.getpid() != self._own.owner:
            raise RuntimeError(
                f"loader: this iterator belongs to process {self._own.owner}, from which process {os.getpid()} was forked. "
                "Call iter(loader) here."
            )

    def _obituary(self, worker: int) -> WorkerDied:
        process = self._own.processes[worker]
        if process.is_alive():
            process.join(1)  # its end is known before its exit code
        code = process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (by the system, if memory ran out)"
            elif -code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL):
                how += ": a crash in native code"
        else:
            how = f"ended by itself, with exit code {code}"
        died = WorkerDied(
            f"loader: worker process {process.pid} {how}. Resume from the last checkpoint, or iterate anew."
        )
        died.number = self.slots.doing[worker]
        return died


class _Inbox:
    """A worker's answers as they come through its pipe: one that is incomplete never holds up the reader."""

    def __init__(self, fd: int) -> None:
        self.ended = False
        self._fd = fd
        self._data = bytearray()

    def read(self) -> list[Answer]:
        """Return the answers that are complete."""
        size = 1 << 16  # a pipe's
        data: Any
        try:
            data = chunk = os.read(self._fd, size)
            if self._data or len(chunk) == size:
                data = self._data
                data += chunk
                while len(chunk) == size:
                    chunk = os.read(self._fd, size)
                    data += chunk
            self.ended = not chunk
        except BlockingIOError:
            data = self._data
        answers = []
        start, complete = 0, len(data)
        while complete - start >= ANSWER.size:
            number, slot, kind, used, structure, image = ANSWER.unpack_from(data, start)
            middle = start + ANSWER.size + structure
            end = middle + image
            if complete < end:
                break
            answers.append(
                Answer(number, slot, kind, used, bytes(data[middle - structure : middle]), bytes(data[middle:end]))
            )
            start = end
        if data is self._data:
            del data[:start]
        elif start < complete:
            self._data += data[start:]
        return answers


def _files(workers: int, queues: int) -> int:
    """Return how many files are opened to start workers."""
    return 4 * workers + 2 * queues + 6


def _check_files(files: int) -> None:
    """Fail now rather than in the middle, where multiprocessing loses some of them."""
    opened: list[int] = []
    try:
        for _ in range(files):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401
    finally:
        for fd in opened:
            os.close(fd)


def _free(free: deque[int], pins: Pins, slot: int) -> None:
    pins.free(slot)
    free.append(slot)


def _preload() -> None:
    """Have the fork server import torch before it forks workers, which else each do; not where others told it what to."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None and server._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload(["__main__", "torch", "loaderkit.engine.ring.worker"])
