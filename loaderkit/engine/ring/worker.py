"""The main function of a worker process of the ring, and the errors that it sends."""

import contextlib
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

from torch.utils.data._utils import worker as torch_worker

from loaderkit.engine.ring.messages import FAILED, IN_PIPE, IN_SLOT, LEFT, TASK, Answer, unpack_key
from loaderkit.engine.ring.slot_batches import write_batch
from loaderkit.engine.ring.slots import STOP, Slots
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.seeding.worker_seeds import seed_all
from loaderkit.system.host import use_host
from loaderkit.system.process import end_with_parent, leave_uncollected, outlive_signals
from loaderkit.system.threads import limit_threads


class PipeEnd:
    """An end of a pipe, to pass to a process that is being started."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __getstate__(self) -> dict[str, object]:
        return {"fd": reduction.DupFd(self.fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.fd = state["fd"].detach()


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The main function of a worker process. For each task it writes the batch into a slot, and sends an answer."""

    reader: BatchReader
    slots: Slots
    tasks: PipeEnd
    answers: PipeEnd
    number: int  # the number of this worker
    workers: int  # how many workers there are
    seed: int  # the seed of this worker's global generators
    init: Callable[[int], None] | None  # the user's `worker_init_fn`
    inherited: Sequence[int] = ()  # open files of the parent that a forked worker closes
    pools: object = None  # for `limit_threads`, in a forked worker

    def __call__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loader's process gets the signal too, and stops this worker
        outlive_signals(lambda: self.slots.wanted[0] == STOP)
        for fd in self.inherited:
            os.close(fd)
        end_with_parent()
        failed = None
        try:
            self._prepare()
        except BaseException as error:
            failed = _failure(error, f"in loader worker process {self.number}, when it started")
        with contextlib.suppress(BrokenPipeError):  # the loader is gone
            slots, tasks, answers, me = self.slots, self.tasks.fd, self.answers.fd, self.number
            while len(task := os.read(tasks, TASK.size)) == TASK.size:
                number, slot, size = TASK.unpack(task)
                if slots.wanted[0] == STOP:
                    break
                slots.doing[me] = number
                answer = self._answer(number, slot, size, failed)
                _send(answers, answer.head())
                _send(answers, answer.image)
                slots.doing[me] = -1

    def _prepare(self) -> None:
        leave_uncollected()
        limit_threads(self.pools)
        use_host()
        seed_all(self.seed)
        about: dict[str, Any] = {"num_workers": self.workers, "seed": self.seed, "dataset": self.reader.dataset}
        torch_worker._worker_info = _SlotWorkerInfo(id=self.number, **about)
        if self.init is not None:
            self.init(self.number)

    def _answer(self, number: int, slot: int, size: int, failed: bytes | None) -> Answer:
        if number < self.slots.wanted[0]:
            return Answer(number, slot, LEFT, 0, b"", b"")
        if failed is None:
            key = unpack_key(self.slots.key(slot, size))
            doing = "made"
            try:
                batch = self.reader.read(key)
                doing = "sent"
                structure, size, image = write_batch(batch, self.slots, slot)
            except BaseException as error:
                if doing == "sent" or not isinstance(error, Exception):
                    some = ", ".join(map(str, key.indices[:8].tolist()))
                    error.add_note(f"loaderkit: raised while the batch of samples {some} was {doing}.")
                failed = _failure(error, f"in loader worker process {self.number}")
            else:
                return Answer(number, slot, IN_SLOT if image is None else IN_PIPE, size, structure, image or b"")
        return Answer(number, slot, FAILED, 0, failed, b"")


class _SlotWorkerInfo(torch_worker.WorkerInfo):
    """What torch's `get_worker_info()` returns in a worker of the ring.

    loaderkit's collates look for `writes_into_slots`. If it is there, they do not put batches into torch's shared
    memory.
    """

    writes_into_slots = True


class _Message(str):
    """A message that a KeyError shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def raise_again(failure: bytes) -> None:
    """Raise a worker's exception, with the worker's traceback in its message.

    The exception has the same type, if that type can be made from a message. StopIteration and SystemExit become
    RuntimeError: in this process they would have another meaning.
    """
    message, kind = pickle.loads(failure)
    try:
        error = pickle.loads(kind)(_Message(message))
    except Exception:
        raise RuntimeError(message) from None
    if message not in str(error):  # its constructor changed the message
        error.add_note(message)
    raise error


def _failure(error: BaseException, where: str) -> bytes:
    """Return an exception and its traceback as bytes, even if it does not pickle."""
    message = f"Caught {type(error).__name__} {where}.\nOriginal {''.join(traceback.format_exception(error))}"
    kind = b""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        with contextlib.suppress(Exception):  # only this process may know its class
            kind = pickle.dumps(type(error))
    return pickle.dumps((message, kind))


def _send(fd: int, content: bytes | bytearray | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
