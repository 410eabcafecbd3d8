"""What runs in a worker process of the ring."""

import multiprocessing
import os
import pickle
import random
import signal
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, reduction
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from loaderkit.engine.ring.layout import write
from loaderkit.engine.ring.slot import Slot
from loaderkit.feed import Feed
from loaderkit.seeding import derive_seed

TASK = struct.Struct("<qqq")  # number of the batch (-1: stop), slot, size of its key there; a pipe hands it over whole
ANSWER = struct.Struct("<qqq")  # number of the batch, slot, bytes of the slot in use (-1: none, FAILED: an exception)
FAILED = -2


class _SlotWorkerInfo(torch_worker.WorkerInfo):
    """What torch's `get_worker_info()` returns here; collates that know it don't make batches in torch's shared memory."""

    writes_into_slots = True


class TaskPipe:
    """The reading end of the pipe that all workers take their tasks from."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __getstate__(self) -> dict[str, Any]:
        return {"fd": reduction.DupFd(self.fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.fd = state["fd"].detach()


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker process's work: takes tasks, reads their batches, writes them into the tasks' slots, and says so."""

    feed: Feed
    slots: Sequence[Slot]
    tasks: TaskPipe
    answers: "connection.Connection[Any, Any]"
    number: int
    workers: int
    init: Callable[[int], None] | None

    def __call__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loader's process gets it too, and stops this one
        parent = multiprocessing.parent_process()
        if parent is not None:
            threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
        failed = None
        try:
            self._prepare()
        except Exception:
            failed = _wrapped(f"in loader worker process {self.number}, when it started")
        while True:
            task = os.read(self.tasks.fd, TASK.size)
            if len(task) < TASK.size:
                return
            number, slot, size = TASK.unpack(task)
            if number < 0:
                return
            self.answers.send_bytes(self._answer(number, self.slots[slot], size, failed))

    def _prepare(self) -> None:
        torch.set_num_threads(1)
        seed = derive_seed("ring", self.feed.seed, self.number)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        about: dict[str, Any] = {
            "id": self.number,
            "num_workers": self.workers,
            "seed": seed,
            "dataset": self.feed.dataset,
        }
        torch_worker._worker_info = _SlotWorkerInfo(**about)
        if self.init is not None:
            self.init(self.number)

    def _answer(self, number: int, slot: Slot, size: int, failed: ExceptionWrapper | None) -> bytes:
        if failed is None:
            try:
                key = pickle.loads(slot.mapping(size)[:size])
                structure, used = write(self.feed.read(key), slot)
                return ANSWER.pack(number, slot.number, used) + structure
            except Exception:
                failed = _wrapped(f"in loader worker process {self.number}")
        return ANSWER.pack(number, slot.number, FAILED) + pickle.dumps(failed)


def _wrapped(where: str) -> ExceptionWrapper:
    """Return the exception that is being handled, with its traceback, so that it pickles."""
    return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
