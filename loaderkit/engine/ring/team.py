"""The ring's worker processes, as the loader sees them: tasks go out, answers come in, none is waited for in vain."""

import contextlib
import multiprocessing
import os
import select
import signal
import time
from collections import deque
from typing import Any, NamedTuple

from loaderkit.engine.ring.slot import Slot
from loaderkit.engine.ring.worker import ANSWER, TASK, TaskPipe, Worker

_GRACE_S = 1.0  # for a worker to end by itself


class Answer(NamedTuple):
    """What a worker made of a task."""

    number: int
    slot: int
    used: int  # bytes of the slot
    structure: bytes


class WorkerDied(RuntimeError):  # noqa: N818 - what happened
    """A worker process ended without being asked to."""


class Team:
    """Worker processes, their slots and the pipes to them.

    Args:
        feed: What they run.
        workers: How many.
        slots: How many batches are under way or in use at most.
        context: How processes are started, as multiprocessing has it.
        init: Called in each with its number.
    """

    def __init__(self, feed: Any, *, workers: int, slots: int, context: Any, init: Any) -> None:
        if not hasattr(context, "Process"):
            context = multiprocessing.get_context(context)
        self.slots = [Slot(number) for number in range(slots)]
        self.free: deque[int] = deque(range(slots))
        self._owner = os.getpid()
        reading, self._tasks = os.pipe()
        self._poll = select.poll()
        self._answers: dict[int, Any] = {}
        self._dead: dict[int, Any] = {}
        self._processes: list[Any] = []
        try:
            for number in range(workers):
                ours, theirs = context.Pipe(duplex=False)
                work = Worker(
                    feed=feed,
                    slots=self.slots,
                    tasks=TaskPipe(reading),
                    answers=theirs,
                    number=number,
                    workers=workers,
                    init=init,
                )
                process = context.Process(target=work, daemon=True, name=f"loader worker {number}")
                process.start()
                theirs.close()
                self._processes.append(process)
                self._answers[ours.fileno()] = ours
                self._dead[process.sentinel] = process
                self._poll.register(ours.fileno(), select.POLLIN)
                self._poll.register(process.sentinel, select.POLLIN)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(reading)

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [process.pid for process in self._processes]

    def submit(self, number: int, key: bytes) -> None:
        """Hand out a task, into a slot that is free."""
        slot = self.slots[self.free.popleft()]
        slot.mapping(len(key), grow=True)[: len(key)] = key
        os.write(self._tasks, TASK.pack(number, slot.number, len(key)))

    def receive(self, timeout_s: float | None) -> list[Answer]:
        """Wait for answers.

        Args:
            timeout_s: How long at most; None is for ever.

        Returns:
            At least one answer; none if the time is over.

        Raises:
            WorkerDied: If a worker ended, and no answer is left.
        """
        ready = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        answers, dead = [], None
        for fd, _ in ready:
            if fd in self._answers:
                try:
                    message = self._answers[fd].recv_bytes()
                except (EOFError, OSError):
                    self._poll.unregister(fd)
                    continue
                number, slot, used = ANSWER.unpack(message[: ANSWER.size])
                answers.append(Answer(number, slot, used, message[ANSWER.size :]))
            else:
                dead = self._dead[fd]
        if dead is not None and not answers:
            raise WorkerDied(_obituary(dead))
        return answers if answers or not ready else self.receive(timeout_s)

    def close(self) -> None:
        """Stop the workers, those too that are busy; slots in use stay until their views are gone."""
        if self._tasks < 0 or os.getpid() != self._owner:
            return
        tasks, self._tasks = self._tasks, -1
        with contextlib.suppress(OSError):
            for _ in self._processes:
                os.write(tasks, TASK.pack(-1, 0, 0))
        os.close(tasks)
        deadline = time.monotonic() + _GRACE_S
        for stop in (None, "terminate", "kill"):
            for process in self._processes:
                if stop and process.is_alive():
                    getattr(process, stop)()
            for process in self._processes:
                process.join(max(0.0, deadline - time.monotonic()))
            deadline = time.monotonic() + _GRACE_S
        for answers in self._answers.values():
            answers.close()
        for process in self._processes:
            process.close()
        for slot in self.slots:
            slot.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be at its end
            self.close()


def _obituary(process: Any) -> str:
    process.join(1)
    code = process.exitcode
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            how += " (by the system, if memory ran out)"
        elif -code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
            how += ": a crash in native code"
    else:
        how = f"ended by itself, with exit code {code}"
    return f"loader: worker process {process.pid} {how}. Resume from the last checkpoint, or iterate anew."
