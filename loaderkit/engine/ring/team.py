"""The ring's worker processes as the loader sees them: tasks go out, answers come in."""

import os
import select
import signal
import time
from collections import deque
from functools import partial
from multiprocessing import util

from loaderkit.engine.ring.messages import FAILED, IN_SLOT, TASK, Answer, Inbox
from loaderkit.engine.ring.pins import Pins
from loaderkit.engine.ring.processes import Processes, Workers
from loaderkit.engine.ring.slot_batches import read_batch
from loaderkit.engine.ring.slots import LARGE, Slots
from loaderkit.engine.ring.worker import raise_again
from loaderkit.system.forks import LONG_S, find_stuck, has_not_begun, stuck_message
from loaderkit.system.main_program import why_it_ended
from loaderkit.system.process import check_children, described

_LOOK_S = 1.0  # between two looks at workers that have not begun
_WINDOW = 64  # tasks, after which a slot gives back memory that its batches did not need


class WorkerDied(RuntimeError):  # noqa: N818 - what happened
    """A worker process ended unexpectedly.

    Attributes:
        number: The number of the worker's task; -1 if it had none.
    """

    number = -1


class Team:
    """Worker processes, their slots and the pipes to them. Tasks can be submitted before the workers are started.

    Raises:
        OSError: If there is no memory, or too many files are open.
    """

    def __init__(self, workers: Workers, *, slots: int, largest: int, cudart: object = None) -> None:
        self._workers = workers
        self.free: deque[int] = deque(range(slots))
        self._trimmed = [0] * slots  # the task at which each slot was last trimmed
        self._most = [0] * slots  # bytes of each slot's largest batch since then
        self._poll = select.poll()
        self._inboxes: dict[int, Inbox] = {}
        self._queues: list[int] = []
        self._stuck_at: float | None = None  # when forked workers that have not begun are stuck; None once all have
        self._own = own = Processes(self.free)
        self.owner = own.owner
        # Runs when the team is freed, and at exit before multiprocessing joins its processes.
        util.Finalize(self, own.close, exitpriority=100)
        with workers.explained(own):
            check_children(workers.count)
            workers.check_files()
            own.slots = self.slots = Slots(slots, workers.count, largest)
            own.pins = self.pins = None if cudart is None else Pins(self.slots, cudart)
            # Leases must not keep the team alive.
            self._freed = self.free.append if self.pins is None else partial(_free, self.free, self.pins)
            for _ in range(workers.queues):
                reading, writing = own.pipe()  # both stay open: writing to a worker that ended is no error here
                os.set_blocking(writing, False)
                self._queues.append(reading)
                own.tasks.append(writing)

    def start(self) -> None:
        """Start the workers, unless they are started."""
        if self._inboxes:
            return
        with self._workers.explained(self._own):
            for answers in self._workers.start(self._own, self.slots, self._queues):
                self._inboxes[answers] = Inbox(answers)
                self._poll.register(answers, select.POLLIN)
            for fd in self._own.watched:
                self._poll.register(fd, select.POLLIN)
        self._stuck_at = time.monotonic() + LONG_S

    def check_workers(self) -> None:
        """Raise WorkerDied if a worker has ended. Otherwise the other workers could make all batches and hide that."""
        dead = [fd for fd, _ in self._poll.poll(0) if fd in self._own.watched]
        if dead:
            raise self._obituary(self._own.watched[dead[0]])

    def submit(self, number: int, key: bytes, turn: int) -> bool:
        """Hand out a task. Return False if there is no free slot or no room in the pipe.

        If tasks are dealt in turn, worker `turn % workers` gets it.

        Raises:
            OSError: If there is no memory left.
        """
        if not self.free:
            return False
        slot = self.free.pop()  # freed last: it is still in the caches
        self._own.leased.discard(slot)
        self._trim(slot, number, len(key))
        if number % _WINDOW == 0:
            for idle in list(self.free):  # a copy: another thread may free a slot meanwhile
                self._trim(idle, number, 0)
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

    def _trim(self, slot: int, number: int, least: int) -> None:
        """Once in `_WINDOW` tasks, give a slot's memory back if its batches needed at most a quarter of it."""
        if number - self._trimmed[slot] < _WINDOW:
            return
        most, self._most[slot], self._trimmed[slot] = self._most[slot], 0, number
        if self.slots.reserved[slot] > max(LARGE, 4 * most):
            if self.pins is not None:
                self.pins.unpin(slot)
            self.slots.cut(slot, max(most * 5 // 4, least))

    def receive(self, timeout_s: float | None) -> list[Answer]:
        """Wait for at least one answer; return none after the timeout.

        Raises:
            WorkerDied: If a worker ended and there is no answer, or it was forked and does not begin.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, 1000 * (deadline - time.monotonic()))
            look = None if self._stuck_at is None else 1000 * _LOOK_S
            ready = self._poll.poll(min((each for each in (left, look) if each is not None), default=None))
            if self._stuck_at is not None:
                self._look_at_starts()
            if not ready:
                if deadline is not None and time.monotonic() >= deadline:
                    return []
                continue
            answers = []
            dead = -1
            for fd, _ in ready:
                inbox = self._inboxes.get(fd)
                if inbox is None:
                    dead = fd
                else:
                    answers += inbox.read()
                    if inbox.ended:
                        self._poll.unregister(fd)
            if dead >= 0:  # the last answer of the worker may have come after its pipe was read
                for inbox in self._inboxes.values():
                    answers += inbox.read()
            if answers:
                return answers
            if dead >= 0:
                raise self._obituary(self._own.watched[dead])

    def _look_at_starts(self) -> None:
        """Raise WorkerDied if a forked worker is stuck before it has begun."""
        if not any(map(has_not_begun, self._own.processes)):
            self._stuck_at = None
        elif time.monotonic() >= (self._stuck_at or 0) and (stuck := find_stuck(self._own.processes)) is not None:
            raise WorkerDied(stuck_message(stuck))

    def worker_of(self, number: int) -> str:
        """Describe the worker that makes batch task `number`. If no worker has it, describe one that a signal has paused."""
        doing = list(self.slots.doing)
        named = [f"worker {worker} ({described(process.pid)})" for worker, process in enumerate(self._own.processes)]
        if number in doing:
            return named[doing.index(number)]
        return next((name for name in named if "stopped" in name), "a worker")

    def open(self, answer: Answer, *, copied: bool) -> tuple[object, bool]:
        """Return the batch of an answer, and whether the batch's tensors are page-locked.

        The batch is a view of its slot; with `copied`, or if it did not fit into the slot, a copy. The slot is freed
        when nothing uses it.

        Raises:
            Exception: The worker's error if it made no batch, or an error of unpickling the batch.
        """
        slots, slot = self.slots, answer.slot
        if answer.kind == IN_SLOT:
            self._most[slot] = max(self._most[slot], answer.size)
            if not copied and answer.size:
                pinned = self.pins is not None and self.pins.lease(slot, answer.size)
                self._own.leased.add(slot)
                # Arrays stay on the host when the tensors go to the device: they must not hold the slot.
                return read_batch(answer.structure, slots.lease(slot, self._freed), own_arrays=pinned), pinned
            memory = bytearray(slots.bytes(slot, answer.size))
        else:
            memory = bytearray(answer.image)
        self.free.append(slot)
        if answer.kind == FAILED:
            raise_again(answer.structure)
        return read_batch(answer.structure, memory), False

    def close(self) -> None:
        """Stop the workers, busy or not. Slots in use stay until their views are gone."""
        self._own.close()

    def _obituary(self, worker: int) -> WorkerDied:
        process = self._own.processes[worker]
        if process.is_alive():
            process.join(1)  # the exit code comes later than the end
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
            f"loader: worker process {process.pid} {how}. Resume from the last checkpoint, or iterate again."
        )
        died.number = self.slots.doing[worker]
        if died.number < 0 and code == 1 and (hint := why_it_ended(self._workers.how)):
            died.add_note(f"loaderkit: {hint}")
        return died


def _free(free: deque[int], pins: Pins, slot: int) -> None:
    pins.free(slot)
    free.append(slot)
