"""Work in parallel: in processes, which end with this process however it ends, or on an executor that the user gives."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from loaderkit.system.process import leave_uncollected

T = TypeVar("T")
R = TypeVar("R")

# Tasks that an executor knows of: more than it has workers, and few enough to keep its scheduler quick.
_IN_FLIGHT = 1_000

_function: Callable[[Any], object]


class LostTaskError(RuntimeError):
    """A task was not done: its process was killed, or the executor failed."""


def map_tasks(
    function: Callable[[T], R],
    tasks: Sequence[T],
    *,
    executor: Executor | None,
    jobs: int = 1,
    fork: bool = True,
    inline: bool = True,
) -> Generator[tuple[T, R | Exception], None, None]:
    """Yield each task with its result or its exception, in the order in which they finish.

    An executor does the work if there is one; otherwise processes of this host do (see `map_in_processes`).

    Raises:
        TypeError: If `executor` is not an Executor.
        ValueError: If both jobs and an executor are given.
    """
    if executor is None:
        return map_in_processes(function, tasks, jobs=jobs, fork=fork, inline=inline)
    if not isinstance(executor, Executor):
        raise TypeError(
            f"executor is a {type(executor).__name__}, wanted a concurrent.futures.Executor: for Dask client.get_executor(), "
            "for Ray lk.RayExecutor()."
        )
    if jobs > 1:
        raise ValueError(f"{jobs} processes and an executor are given, wanted one of them. Leave out the number.")
    return map_on_executor(function, tasks, executor)


def map_on_executor(
    function: Callable[[T], R], tasks: Iterable[T], executor: Executor, *, in_flight: int = _IN_FLIGHT
) -> Generator[tuple[T, R | Exception], None, None]:
    """Yield each task with its result or its exception, in the order in which they finish.

    Args:
        function: A function that pickles.
        tasks: The arguments of its calls.
        executor: Calls the function. It stays open.
        in_flight: The most tasks that the executor has at a time.
    """
    call, waiting = _Portable(function), iter(tasks)
    finished: SimpleQueue[Future[R | Exception]] = SimpleQueue()
    futures: dict[Future[R | Exception], T] = {}

    def submit(tasks: Iterable[T]) -> None:
        for task in tasks:
            try:
                future = executor.submit(call, task)
            except Exception as error:  # it is broken or shut down, or the function does not pickle
                future = Future()
                future.set_exception(error)
            futures[future] = task
            future.add_done_callback(finished.put)

    try:
        submit(islice(waiting, in_flight))
        while futures:
            future = finished.get()
            task = futures.pop(future)
            yield task, _outcome(future)
            submit(islice(waiting, 1))
    finally:
        for future in futures:
            future.cancel()


def _outcome(future: Future[R | Exception]) -> R | Exception:
    """Return what a task returned. An error that `_result` did not catch is the executor's: return a LostTaskError for it."""
    try:
        return future.result()
    except BrokenExecutor:
        return LostTaskError("a worker process was killed before this was done (out of memory?). Run it again.")
    except Exception as error:
        return LostTaskError(f"the executor failed before this was done: {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True, eq=False)
class _Portable(Generic[T, R]):
    """A function that returns its errors, in a form that pickles."""

    function: Callable[[T], R]

    def __call__(self, task: T) -> R | Exception:
        return _result(self.function, task)


def map_in_processes(
    function: Callable[[T], R], tasks: Sequence[T], *, jobs: int, fork: bool, inline: bool = True
) -> Generator[tuple[T, R | Exception], None, None]:
    """Yield each task with its result or its exception, in the order in which they finish.

    Args:
        function: A function that pickles. Each process receives it once.
        tasks: The arguments of its calls.
        jobs: The number of processes; with 1 this process does the work.
        fork: Whether processes may be forked, which starts them faster.
        inline: Whether this process may do a single task itself when there are several jobs.
    """
    if jobs == 1 or len(tasks) <= inline:
        for task in tasks:
            yield task, _result(function, task)
        return
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if fork and "fork" in methods else "spawn")
    stop, stopping = context.Pipe(duplex=False)
    # Unlike `as_completed`, it waits without locks that are written in Python (see `_hold_interrupts`).
    finished: SimpleQueue[Future[R | Exception]] = SimpleQueue()
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)), mp_context=context, initializer=_begin_worker, initargs=(function, stop)
    )
    try:
        with _hold_interrupts():
            futures: dict[Future[R | Exception], T] = {pool.submit(_work, task): task for task in tasks}
            for future in futures:
                future.add_done_callback(finished.put)
        while futures:
            future = finished.get()
            yield futures.pop(future), _outcome(future)
    except BaseException:
        stopping.send_bytes(b"stop")  # no worker reads it, so all of them see it
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        stop.close()
        stopping.close()


@contextlib.contextmanager
def _hold_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the `with`.

    If it came while a lock that is written in Python (`threading.Condition`) is being taken, the lock could stay locked, and
    the pool would never end.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupts:
            raise KeyboardInterrupt


def _result(function: Callable[[T], R], task: T) -> R | Exception:
    try:
        return function(task)
    except Exception as error:
        return _portable(error)


def _portable(error: Exception) -> Exception:
    """Return an error with the same text that can be pickled and unpickled: many classes of errors cannot."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    plain = type(error) is ValueError or type(error).__module__.startswith("loaderkit.")
    name = "" if plain else f"{type(error).__name__}: "
    return RuntimeError(f"{name}{error}{notes}")


def _work(task: object) -> Any:
    return _result(_function, task)


def _begin_worker(function: Callable[[Any], object], stop: connection.Connection) -> None:
    """Keep the function for the tasks. End this worker when the parent ends, or sends something through `stop`."""
    global _function
    _function = function
    leave_uncollected()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then stops the workers
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel, stop), daemon=True).start()


def _end_with(*signals: connection.Connection | int) -> None:
    connection.wait(signals)
    os._exit(1)
