"""The engine on the workers of `torch.utils.data.DataLoader`."""

import contextlib
import copy
import io
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from typing import Any

import torch
import torch.utils.data as torch_data
from torch import Tensor
from torch.utils.data._utils import worker as torch_worker

from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.plan import BatchKey
from loaderkit.seeding.keys import derive_seed
from loaderkit.system.containers import CONTAINERS, reduced
from loaderkit.system.forks import has_not_begun, starts_watched
from loaderkit.system.host import host, use_host
from loaderkit.system.main_program import why_it_ended
from loaderkit.system.nested import is_plain, pin
from loaderkit.system.open_before_fork import warn_of_open_files
from loaderkit.system.parcel import Parcel
from loaderkit.system.pickling import explained, sendable_errors
from loaderkit.system.process import (
    check_children,
    described,
    end_with_parent,
    leave_uncollected,
    outlive_signals,
    refuse_in_fork,
)
from loaderkit.system.start import Start, choose_start, prepare_fork_server
from loaderkit.system.tensor_pickling import lazy_parts
from loaderkit.system.threads import limit_threads
from loaderkit.system.worker_info import with_dataset

# Copying this much through a pipe is faster than a file descriptor and fresh pages for each tensor.
_SMALL = 1 << 17  # bytes
_LATE_S = 1.0  # after torch's own timeout, before workers that are stopped by a signal are woken


class _Keys:
    """The DataLoader's batch sampler: the keys of this run."""

    now: Iterable[BatchKey] = ()

    def __iter__(self) -> Iterator[BatchKey]:
        return iter(self.now)


@dataclass(frozen=True, slots=True)
class Hidden:
    """A batch that torch does not look into: to pin the batch, torch calls `pin_memory`."""

    content: object

    def pin_memory(self) -> "Hidden":
        return Hidden(pin(self.content))


@dataclass(frozen=True, slots=True)
class Sealed:
    """A pickled batch, which arrives as a `Hidden`.

    In a worker, torch pickles batches in a thread. If that fails, the batch is lost, and the trainer waits forever. So
    a worker pickles each batch before it hands the batch to torch. Small tensors travel in the message, large ones in
    shared memory. The message can be read once.
    """

    message: bytes

    def __reduce__(self) -> tuple[object, ...]:
        return _open, (self.message,)


def seal(batch: object) -> Sealed:
    """Pickle a batch."""
    buffer = io.BytesIO()
    with sendable_errors():
        try:
            _Pickler(buffer, -1).dump(batch)
        except Exception as error:
            error.add_note(
                "loaderkit: a worker cannot send this batch to the trainer. Let collate_fn return what can be pickled, or use "
                "num_workers=0 or engine='threads'."
            )
            raise
    return Sealed(buffer.getvalue())


def _open(message: bytes) -> Hidden:
    with host():  # torch makes sparse tensors on its default device
        return Hidden(pickle.loads(message))


class _Pickler(ForkingPickler):
    def reducer_override(self, value: object) -> Any:
        if isinstance(value, CONTAINERS):
            return reduced(value)
        if not isinstance(value, Tensor):
            return NotImplemented
        if not is_plain(value) or not value.is_contiguous() or vars(value):
            return lazy_parts(value)
        if value.nbytes > _SMALL:
            return NotImplemented
        content = bytearray(value.reshape(-1).view(torch.uint8).numpy().data) if value.numel() else bytearray()
        return _rebuild, (content, value.dtype, tuple(value.shape))


def _rebuild(content: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    make: Callable[..., Tensor] = torch.frombuffer
    return make(content, dtype=dtype).reshape(shape) if content else torch.empty(shape, dtype=dtype, device="cpu")


class Batches:
    """The batches of a run. An error ends the workers at once.

    The error that torch raises and its traceback form a cycle that holds the workers. The garbage collector would wait
    5 s for each of them. So the traceback is dropped; the error's message has the worker's traceback.

    A forked process cannot read the batches: it would take them from its parent.

    Args:
        batches: The iterator of torch's DataLoader.
        crew: The DataLoader's workers.
        timeout_s: The DataLoader's timeout; 0 means none.
    """

    def __init__(self, batches: Iterator[Hidden], crew: "Crew", timeout_s: float) -> None:
        self._batches, self._crew, self._timeout_s, self._owner = batches, crew, timeout_s, os.getpid()
        self._given = 0
        self._stuck: list[str] = []  # why a worker was killed that did not begin
        _running.add(batches)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._owner:
            refuse_in_fork(self._owner)
        start = time.monotonic()
        try:
            content = self._next().content
        except StopIteration:
            raise
        except BaseException as error:
            worker = self._crew.name(self._given)
            late = 0 < self._timeout_s <= time.monotonic() - start and isinstance(error, RuntimeError)
            self._crew.wake()
            self.end()
            if self._stuck:
                raise RuntimeError(self._stuck[0]) from None
            if not late:
                if not self._given and "exited unexpectedly" in str(error) and (hint := why_it_ended(self._crew.start)):
                    error.add_note(f"loaderkit: {hint}")
                raise error.with_traceback(None)  # noqa: B904 - it is the error itself
            error.__traceback__ = None
            with contextlib.suppress(RuntimeError):  # torch reports the deaths
                self._crew.kill()
            raise RuntimeError(
                f"loader: no batch in {self._timeout_s:g} s (timeout): {worker} hangs, or its samples take longer. Check "
                "what it waits for, or raise the timeout."
            ) from None
        self._given += 1
        return content

    def _next(self) -> Hidden:
        if self._given or not any(map(has_not_begun, self._crew.processes)):
            return self._next_in_time()
        with starts_watched(self._crew.processes) as self._stuck:
            return self._next_in_time()

    def _next_in_time(self) -> Hidden:
        if not self._timeout_s:
            return next(self._batches)
        # torch's timeout covers the start of a message only. torch waits without a limit for the rest of the message,
        # which a stopped worker does not send. The timer's thread ends some time after the last batch. If that thread
        # held torch's iterator, it would end the workers.
        woken = threading.Event()
        timer = threading.Timer(self._timeout_s + _LATE_S, _wake_late, (weakref.ref(self._crew), woken))
        timer.daemon = True
        timer.start()
        try:
            batch = next(self._batches)
        finally:
            timer.cancel()
        if woken.is_set():
            raise RuntimeError("late")
        return batch

    def end(self) -> None:
        """Stop the workers."""
        self._batches = iter(())


class Crew:
    """The worker processes that torch's DataLoader starts.

    Args:
        start: How the workers start.
        work: What the DataLoader sends to the workers.
    """

    def __init__(self, start: Start, work: object) -> None:
        self.start, self._work = start, work
        self.context: Any = copy.copy(start.context)
        self.processes: list[Any] = []
        self._parcel = Parcel(work) if start.method != "fork" else None
        self._owner, self._make = os.getpid(), self.context.Process
        new: Any = weakref.WeakMethod(self._new)  # else the data would live until the next garbage collection
        self.context.Process = lambda *args, **kwargs: new()(*args, **kwargs)
        # At exit, before multiprocessing waits for its processes: one that is stopped, or outlives SIGTERM, would not end.
        util.Finalize(self, _release, args=(self.processes, self._owner), exitpriority=100)

    def _new(self, *args: object, **kwargs: Any) -> object:
        if self._parcel is not None:
            kwargs["args"] = tuple(map(self._packed, kwargs["args"]))
        process = self._make(*args, **kwargs)
        process.terminate = process.kill  # torch's last resort: a worker outlives SIGTERM if its trainer does
        self.processes[:] = [each for each in self.processes if each.is_alive()]  # a later pass has workers of its own
        self.processes.append(process)
        return process

    def _packed(self, argument: object) -> object:
        if argument is self._work:
            return self._parcel
        if type(argument) is list:  # newer versions of torch have the dataset in a list
            return [self._packed(each) for each in argument]
        return argument

    @contextlib.contextmanager
    def starting(self, **more: object) -> Iterator[None]:
        """Return a context to start workers in. If they cannot start, the error says why.

        `more` are further objects that the workers need, by name.
        """
        prepare_fork_server(self.start)
        try:
            with host(), explained(self.start, self._work, **more):  # torch makes a seed there
                yield
        finally:
            if self._parcel is not None:
                self._parcel.close()

    def name(self, batch: int) -> str:
        """Name the worker that makes batch number `batch` of the run, and say whether a signal has stopped it."""
        if not self.processes:
            return "a worker"
        number = batch % len(self.processes)
        return f"worker {number} ({described(self.processes[number].pid)})"

    def wake(self) -> None:
        """Continue workers that a signal has stopped: otherwise they would not end."""
        _wake(self.processes, self._owner)

    def kill(self) -> None:
        """Kill the workers that have not ended."""
        if self._owner == os.getpid():
            while self.processes:
                process = self.processes.pop()
                if process.pid is not None and process.is_alive():
                    process.kill()
                    process.join(1)


def _release(processes: list[Any], owner: int) -> None:
    _wake(processes, owner)
    if util.is_exiting() and owner == os.getpid():
        _kill(processes)


def _kill(processes: list[Any]) -> None:
    alive = [process for process in processes if process.pid is not None and process.is_alive()]
    watch: Any = None
    with contextlib.suppress(ValueError):  # in another thread than the main one
        watch = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises if a worker is killed
    for process in alive:
        process.kill()
    for process in alive:
        process.join(1)
    if watch is not None:
        signal.signal(signal.SIGCHLD, watch)


def _wake_late(crew: weakref.ref[Crew], woken: threading.Event) -> None:
    woken.set()
    if (workers := crew()) is not None:
        workers.wake()


def _wake(processes: list[Any], owner: int) -> None:
    if owner == os.getpid():
        for process in processes:
            if process.pid is not None and process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)


_running: weakref.WeakSet[Iterator[Hidden]] = weakref.WeakSet()
_inherited: list[Iterator[Hidden]] = []


def _keep_inherited() -> None:
    _inherited.extend(_running)


os.register_at_fork(after_in_child=_keep_inherited)  # freeing one of torch's iterators would stop the parent's workers


@dataclass(frozen=True)
class StartWorker:
    """Prepares a worker, then calls the user's `worker_init_fn` as `init`.

    The worker ends when its parent ends, handles signals as the parent does, and its libraries use one thread each.
    `get_worker_info().dataset` becomes the user's dataset, which `init` may change. `find_dataset` returns the user's
    dataset, given the object that torch takes for the dataset.
    """

    init: Callable[[int], None] | None
    find_dataset: Callable[[Any], object]

    def __call__(self, worker_id: int) -> None:
        leave_uncollected()
        # torch's workers watch their parent's id. Under forkserver that is the server, which lives as long as they do,
        # even if the trainer was killed. And a worker that ends waits until its batches are read.
        end_with_parent()
        outlive_signals()
        limit_threads()
        use_host()
        # The thread that sends batches imports parts of torch for its first large tensor. If this thread imports them at
        # the same time, the import fails, the batch is lost, and the trainer waits for ever.
        ForkingPickler.dumps(torch.empty(0))
        info: Any = torch_data.get_worker_info()
        torch_worker._worker_info = with_dataset(info, self.find_dataset(info.dataset))
        if self.init is not None:
            with sendable_errors():
                self.init(worker_id)


class TorchEngine:
    """Makes batches in the workers of torch's DataLoader, which deals the keys in turn and keeps the order.

    The arguments are named as those of the DataLoader.
    """

    name: str = "torch"
    dealing: str | None = "in turn"
    pinned_why: str = ""
    started: Start | None = None

    def __init__(
        self,
        reader: BatchReader,
        *,
        num_workers: int,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: object = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
    ) -> None:
        self.num_workers, self.pinned = num_workers, pin_memory
        self.prefetch = num_workers * (prefetch_factor or 2)
        self._settings: dict[str, Any] = {
            "num_workers": num_workers,
            "pin_memory": pin_memory,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "worker_init_fn": StartWorker(worker_init_fn, attrgetter("dataset")),
            "timeout": timeout,
        }
        self._reader, self._init, self._timeout_s = reader, worker_init_fn, timeout
        self._context = multiprocessing_context
        self._crew: Crew | None = None
        self._keys: Any = _Keys()
        self._generator = torch.Generator()  # without one, the DataLoader draws from the global generator
        self._loader: Any = None  # a DataLoader, which has one type parameter or two, by torch's version
        self._running: weakref.ref[Batches] | None = None
        self._owner = os.getpid()

    def run(self, keys: Iterable[BatchKey], seed: int = 0) -> Iterator[object]:
        check_children(self.num_workers)
        if self._owner != os.getpid():  # its workers belong to the parent of this fork
            self._loader, self._owner = None, os.getpid()
        if self._loader is None or self._crew is None or not self._settings["persistent_workers"]:
            self.started = choose_start(self._context, self._reader)
            self._crew = Crew(self.started, self._reader)
            dataset: Any = self._reader
            self._loader = torch_data.DataLoader(
                dataset,
                batch_sampler=self._keys,
                collate_fn=seal,
                generator=self._generator,
                multiprocessing_context=self._crew.context,
                **self._settings,
            )
        self._keys.now = keys
        self._generator.manual_seed(derive_seed("torch", seed))
        warn_of_open_files(self._reader.dataset, self._crew.start.method)
        with self._crew.starting(worker_init_fn=self._init):
            batches = Batches(iter(self._loader), self._crew, self._timeout_s)
        self._running = weakref.ref(batches)
        return batches

    def close(self) -> None:
        if self._crew is not None:
            self._crew.wake()
        self._loader = None  # the workers end when the DataLoader and its batches are freed
        if self._running is not None and (running := self._running()) is not None:
            running.end()
