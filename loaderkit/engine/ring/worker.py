"""What runs in a worker process of the ring."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, reduction
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from loaderkit.engine.batch_reader import BatchReader
from loaderkit.engine.ring.messages import ANSWER, FAILED, IN_PIPE, IN_SLOT, LEFT, TASK, unpack_key
from loaderkit.engine.ring.pickled import write
from loaderkit.engine.ring.slots import STOP, Slots
from loaderkit.seeding.global_seeds import seed_all
from loaderkit.seeding.keys import derive_seed
from loaderkit.system.threads import limit_threads


class PipeEnd:
    """An end of a pipe, for a process that is being started."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __getstate__(self) -> dict[str, Any]:
        return {"fd": reduction.DupFd(self.fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.fd = state["fd"].detach()


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker process's work: takes tasks, reads their batches, writes them into the tasks' slots, and says so.

    Args:
        inherited: Open files of the loader's process that a forked worker has, and must not keep open.
        pools: As `limit_threads` takes them, for a forked worker.
    """

    reader: BatchReader
    slots: Slots
    tasks: PipeEnd
    answers: PipeEnd
    number: int
    workers: int
    init: Callable[[int], None] | None
    inherited: Sequence[int] = ()
    pools: Any = None

    def __call__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loader's process gets it too, and stops this one
        signal.signal(
            signal.SIGTERM, signal.SIG_DFL
        )  # a forked worker has the trainer's handlers, which are not for it
        signal.set_wakeup_fd(-1)
        for fd in self.inherited:
            os.close(fd)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        failed = None
        try:
            self._prepare()
        except BaseException as error:
            failed = _failure(error, f"in loader worker process {self.number}, when it started")
        with contextlib.suppress(BrokenPipeError):  # nobody wants the answer any more
            slots, tasks, answers, me = self.slots, self.tasks.fd, self.answers.fd, self.number
            while len(task := os.read(tasks, TASK.size)) == TASK.size:
                number, slot, size = TASK.unpack(task)
                if slots.wanted == STOP:
                    break
                slots.doing[me] = number
                for part in self._answer(number, slot, size, failed):
                    _send(answers, part)
                slots.doing[me] = -1

    def _prepare(self) -> None:
        limit_threads(self.pools)
        seed = derive_seed("ring", self.reader.seed, self.number)
        seed_all(seed)
        about: dict[str, Any] = {
            "id": self.number,
            "num_workers": self.workers,
            "seed": seed,
            "dataset": self.reader.dataset,
        }
        torch_worker._worker_info = _SlotWorkerInfo(**about)
        if self.init is not None:
            self.init(self.number)

    def _answer(self, number: int, slot: int, size: int, failed: bytes | None) -> Sequence[Any]:
        if number < self.slots.wanted:
            return (ANSWER.pack(number, slot, LEFT, 0, 0, 0),)
        if failed is None:
            key = unpack_key(self.slots.key(slot, size))
            doing = "made"
            try:
                batch = self.reader.read(key)
                doing = "sent"
                structure, size, image = write(batch, self.slots, slot)
            except BaseException as error:
                if doing == "sent" or not isinstance(error, Exception):
                    some = ", ".join(map(str, key.indices[:8].tolist()))
                    error.add_note(f"loaderkit: raised while the batch of samples {some} was {doing}.")
                failed = _failure(error, f"in loader worker process {self.number}")
            else:
                kind = IN_SLOT if image is None else IN_PIPE
                beside = 0 if image is None else size
                head = ANSWER.pack(number, slot, kind, size, len(structure), beside)
                return (head + structure,) if image is None else (head + structure, image)
        return (ANSWER.pack(number, slot, FAILED, 0, len(failed), 0) + failed,)


class _SlotWorkerInfo(torch_worker.WorkerInfo):
    """What torch's `get_worker_info()` returns here; collates that know it don't make batches in torch's shared memory."""

    writes_into_slots = True


def raise_again(failure: bytes) -> None:
    """Raise a worker's exception, with the worker's own traceback in its message.

    Of the same type, where that can be made from a message, and is no StopIteration or SystemExit, which would mean
    something else here.
    """
    message, wrapped = pickle.loads(failure)
    try:
        wrapper = pickle.loads(wrapped)
    except Exception:
        raise RuntimeError(message) from None
    try:
        wrapper.reraise()
    except wrapper.exc_type as error:
        if message not in str(error):  # its own constructor says something else
            error.add_note(message)
        raise
    except Exception:
        raise RuntimeError(message) from None


def _failure(error: BaseException, where: str) -> bytes:
    """Return an exception with its traceback as bytes, whatever it holds."""
    wrapper = ExceptionWrapper((type(error), error, error.__traceback__), where)  # type: ignore[no-untyped-call]
    message = f"Caught {type(error).__name__} {where}.\nOriginal {wrapper.exc_msg}"
    wrapped = b""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        with contextlib.suppress(Exception):  # its class may be one that only this process knows
            wrapped = pickle.dumps(wrapper)
    return pickle.dumps((message, wrapped))


def _send(fd: int, content: Any) -> None:
    sent = os.write(fd, content)
    if sent < len(content):
        rest = memoryview(content)[sent:]
        while rest:
            rest = rest[os.write(fd, rest) :]


def _end_with_parent() -> None:
    """End when the loader's process does."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    try:
        # Better than multiprocessing's pipe, which any process that was forked from the loader's keeps open.
        watched: Any = os.pidfd_open(parent.pid)
    except AttributeError:
        watched = parent.sentinel
    except OSError:
        watched = None
    if watched is not None:
        connection.wait([watched])
    os._exit(1)
