"""The engine on threads of this process, for data that waits for a service, a store or a disk."""

import atexit
import os
import time
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from threading import Event, Thread

from torch import Tensor

from loaderkit.engine.description import AHEAD, batches_ahead
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.plan import BatchKey
from loaderkit.seeding.draws import Draws, draws
from loaderkit.seeding.keys import derive_seed
from loaderkit.system.nested import map_leaves, pin, tensor_bytes
from loaderkit.system.process import refuse_in_fork
from loaderkit.system.start import WORKER_THREADS, Start
from loaderkit.system.threads import Cancelled, mark_reader
from loaderkit.system.worker_info import tell_thread

_PATIENCE_S = 5.0  # to wait for threads that finish a last sample


def check_threads(reader: BatchReader) -> None:
    """Refuse data that may draw from the global generators: those belong to the trainer, which draws at the same time.

    Raises:
        ValueError: If the dataset or the collate_fn does not declare what it draws.
    """
    if reader.draws_from() is not Draws.ANYTHING:
        return
    what, who = (
        ("dataset", reader.dataset) if draws(reader.dataset) is Draws.ANYTHING else ("collate_fn", reader.collate_fn)
    )
    name = getattr(who, "__qualname__", type(who).__name__)
    also = " (on its transform, if it has one)" if what == "dataset" else ""
    raise ValueError(
        f"loader: engine='threads', and {what} {name} may draw from torch's, numpy's or random's global generators, which "
        f"threads can't seed: they are the trainer's. If it draws nothing, set{also} draws_nothing = True; if it draws "
        "from lk.sample_rng() alone, set draws_only_sample_rng = True. Else use worker processes: engine='ring'."
    )


class ThreadsEngine:
    """Makes batches in threads, which share the dataset.

    The dataset is not copied, and batches are not sent between processes. With the GIL, one thread runs Python at a
    time, so threads help if reads wait or release the GIL, as image decoders do. Batches come in the order of their
    keys, whichever thread makes them. The arguments are named as those of torch's DataLoader.

    Raises:
        ValueError: If the data may draw from the global generators.
    """

    name: str = "threads"
    dealing: str | None = "to whoever is free"
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
        timeout: float = 0,
    ) -> None:
        check_threads(reader)
        self._reader, self.num_workers, self.pinned = reader, num_workers, pin_memory
        self.factor, self.timeout_s = prefetch_factor, timeout or None
        self.prefetch = num_workers * (prefetch_factor or AHEAD)
        self.persistent = persistent_workers
        self._run: Callable[[], _Run | None] = lambda: None  # the latest, if it is in use
        self._crew: _Crew | None = None

    def run(self, keys: Iterable[BatchKey], seed: int = 0) -> Iterator[object]:
        before = self._run()
        if before is not None:
            before.end()
        if self._crew is None or not self._crew.is_here:
            self._crew = _Crew(self._reader, seed)
        run = _Run(self, self._crew, iter(keys))
        self._run = weakref.ref(run)
        run.start()
        if not self.persistent:
            self._crew = None  # the crew ends with its run
        return run

    def expect(self, size_bytes: int) -> None:
        """Make as many batches ahead as suits their size, and keep the memory of so many."""
        self.prefetch = batches_ahead(size_bytes, self.num_workers, self.factor)
        # Without the GIL, Python frees what a thread made when that thread runs again: several batches at once.
        self._reader.keep_memory(self.prefetch)

    def close(self) -> None:
        run, crew = self._run(), self._crew
        if run is not None:
            crew = run.crew
            run.end()
        if crew is not None:
            crew.end()
            crew.join(_PATIENCE_S)
        self._crew = None


class _Task:
    """A batch to be made."""

    __slots__ = ("awaited", "batch", "done", "error", "key")

    def __init__(self, key: BatchKey) -> None:
        self.key: BatchKey | None = key  # None if the batch is not wanted any more
        self.awaited = False
        self.batch: object = None
        self.error: BaseException | None = None
        self.done = allocate_lock()  # held until the batch is made
        self.done.acquire()


def _work(reader: BatchReader, about: tuple[int, int, int], tasks: "SimpleQueue[_Task | None]", over: Event) -> None:
    task: _Task | None = None

    def wanted() -> bool:
        return task is not None and task.key is not None and (task.awaited or not over.is_set())

    mark_reader(wanted)
    tell_thread(*about, reader.dataset)
    while (task := tasks.get()) is not None:
        key = task.key
        if key is not None:
            try:
                if not wanted():
                    raise Cancelled("the loader was closed")
                task.batch = reader.read(key)
            except BaseException as error:
                task.error = error
            task.done.release()
        task = None  # else it keeps its batch until the next task


class _Crew:
    """Threads that take tasks from a queue, until this object is freed."""

    def __init__(self, reader: BatchReader, seed: int) -> None:
        self._owner, self._over = os.getpid(), Event()  # the threads hold `_over`, not this object
        self._reader, self._seed = reader, seed
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[Thread] = []
        _crews.add(self)

    @property
    def is_here(self) -> bool:
        """Whether the threads take tasks. A forked process has no threads."""
        return not self._over.is_set() and self._owner == os.getpid()

    def start(self, count: int) -> None:
        """Start threads until there are `count`."""
        for number in range(len(self._threads), count):
            # Daemons: a read that hangs must not keep the process from ending.
            about = number, count, derive_seed("thread", self._seed, number)
            name = f"{WORKER_THREADS} {number}"
            thread = Thread(target=_work, args=(self._reader, about, self.tasks, self._over), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
            _threads.add(thread)

    def end(self) -> None:
        """Tell the threads to end, each after its current sample."""
        if self.is_here:
            self._over.set()
            for _ in self._threads:
                self.tasks.put(None)

    def join(self, patience_s: float) -> None:
        """Wait for the threads to end."""
        if self._owner == os.getpid():
            _join(self._threads, patience_s)

    def __del__(self) -> None:
        self.end()


class _Run:
    """The batches of a run, in order."""

    def __init__(self, engine: ThreadsEngine, crew: _Crew, keys: Iterator[BatchKey]) -> None:
        self._engine, self.crew, self._keys = engine, crew, keys
        self._owner = os.getpid()
        self._ahead: deque[_Task] = deque()  # tasks that were handed out, in order
        self._all_out = self._over = False
        self._sized = False  # whether the size of a batch is known

    def start(self) -> None:
        """Hand out tasks, and start the threads."""
        try:
            self._submit()
            self.crew.start(self._engine.num_workers)
        except BaseException:
            self.end()
            raise

    def __iter__(self) -> "_Run":
        return self

    def __next__(self) -> object:
        if self._owner != os.getpid():
            refuse_in_fork(self._owner)
        if self._over:
            raise StopIteration
        try:
            self._submit()
            if not self._ahead:
                raise StopIteration
            batch = self._take(self._ahead.popleft())
            self._submit()
        except BaseException:
            self.end()
            raise
        return pin(batch) if self._engine.pinned else batch

    def _submit(self) -> None:
        """Hand out tasks until as many are under way as the engine makes ahead."""
        while len(self._ahead) < self._engine.prefetch and not self._all_out:
            key = next(self._keys, None)
            if key is None:
                self._all_out = True
                return
            task = _Task(key)
            self._ahead.append(task)
            self.crew.tasks.put(task)

    def _take(self, task: _Task) -> object:
        timeout_s = self._engine.timeout_s
        task.awaited = True
        if not task.done.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self.crew.end()  # a thread hangs: the next run starts others
            which = task.key.indices[:8].tolist() if task.key is not None else []
            raise RuntimeError(
                f"loader: no batch in {timeout_s:g} s (timeout): samples {which} take longer. Check them, or raise the timeout."
            )
        if task.error is not None:
            error, task.error = task.error, None
            if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
                raise error
            raise RuntimeError(f"loader: {type(error).__name__} in a thread: {error}") from error
        if not self._sized:
            self._sized = True
            self._engine.expect(_size_of(task.batch))
        return task.batch

    def end(self) -> None:
        """Cancel the tasks under way. End the threads unless they persist."""
        if self._over:
            return
        self._over = True
        while self._ahead:
            self._ahead.pop().key = None
        if not self._engine.persistent:
            self.crew.end()

    def __del__(self) -> None:
        self.end()


def _size_of(batch: object) -> int:
    """Return the bytes of a batch's tensors."""
    sizes = []

    def add(leaf: object) -> object:
        sizes.append(tensor_bytes(leaf) if isinstance(leaf, Tensor) else 0)
        return leaf

    map_leaves(batch, add)
    return sum(sizes)


_crews: weakref.WeakSet[_Crew] = weakref.WeakSet()
_threads: weakref.WeakSet[Thread] = weakref.WeakSet()


def _join(threads: Iterable[Thread], patience_s: float) -> None:
    end = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


@atexit.register
def _end_all() -> None:
    """End all threads before the interpreter ends: later they could crash."""
    for crew in list(_crews):
        crew.end()
    _join([thread for thread in _threads if thread.is_alive()], _PATIENCE_S)
