"""Work in parallel processes that end with this one, by whatever means it ends."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, TypeVar

from loaderkit.system.cpus import Cpus

T = TypeVar("T")
R = TypeVar("R")

_function: Callable[[Any], Any]


def usable_cpus() -> int:
    """Return how many CPUs this process may keep busy: its affinity and control groups say so."""
    return Cpus.detect().usable


def map_in_processes(
    function: Callable[[T], R], tasks: Sequence[T], *, jobs: int, fork: bool, inline: bool = True
) -> Generator[tuple[T, R | Exception], None, None]:
    """Yield each task with its result or its exception, as they come.

    Args:
        function: Of a module, so that it pickles; it is sent once to each process, not with each task.
        tasks: What it is called with.
        jobs: Processes; with one, the work is done in this process.
        fork: Whether processes may be forked, which starts them at once.
        inline: Whether a single task may be done in this process when there are several jobs.
    """
    if jobs == 1 or len(tasks) <= inline:
        for task in tasks:
            yield task, _result(function, task)
        return
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if fork and "fork" in methods else "spawn")
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)), mp_context=context, initializer=_begin_worker, initargs=(function,)
    )
    try:
        futures: dict[Future[R | Exception], T] = {pool.submit(_work, task): task for task in tasks}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                error = RuntimeError("a worker process was killed before this was done (out of memory?). Run it again.")
                yield futures[future], error
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _result(function: Callable[[T], R], task: T) -> R | Exception:
    try:
        return function(task)
    except Exception as error:
        return _portable(error)


def _portable(error: Exception) -> Exception:
    """Return an error that survives pickling: many with arguments of their own do not."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    plain = type(error) is ValueError or type(error).__module__.startswith("loaderkit.")
    name = "" if plain else f"{type(error).__name__}: "
    return RuntimeError(f"{name}{error}{notes}")


def _work(task: Any) -> Any:
    return _result(_function, task)


def _begin_worker(function: Callable[[Any], Any]) -> None:
    """Keep the function, which may hold a dataset, and end with the parent."""
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends us
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
