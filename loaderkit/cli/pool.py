"""Work in parallel processes that end with this one, by whatever means it ends."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_processes(
    function: Callable[[T], R], tasks: Sequence[T], *, jobs: int, fork: bool
) -> Iterator[tuple[T, R | Exception]]:
    """Yield each task with its result or its exception, as they come.

    Args:
        function: Of a module, so that it pickles.
        tasks: What it is called with.
        jobs: Processes; with one, the work is done in this process.
        fork: Whether processes may be forked, which starts them at once.
    """
    if jobs == 1 or len(tasks) <= 1:
        for task in tasks:
            yield task, _result(function, task)
        return
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if fork and "fork" in methods else "spawn")
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context, initializer=_end_with_parent)
    try:
        futures: dict[Future[R | Exception], T] = {pool.submit(_result, function, task): task for task in tasks}
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


def _end_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends us
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
