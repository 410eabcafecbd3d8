"""Work in parallel processes, which end with this process however it ends."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_function: Callable[[Any], Any]


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
    pool = ProcessPoolExecutor(
        min(jobs, len(tasks)), mp_context=context, initializer=_begin_worker, initargs=(function, stop)
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
        stopping.send_bytes(b"stop")  # no worker reads it, so all of them see it
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        stop.close()
        stopping.close()


def _result(function: Callable[[T], R], task: T) -> R | Exception:
    try:
        return function(task)
    except Exception as error:
        return _portable(error)


def _portable(error: Exception) -> Exception:
    """Return an error that survives pickling, with the same text: many classes of errors do not."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    plain = type(error) is ValueError or type(error).__module__.startswith("loaderkit.")
    name = "" if plain else f"{type(error).__name__}: "
    return RuntimeError(f"{name}{error}{notes}")


def _work(task: Any) -> Any:
    return _result(_function, task)


def _begin_worker(function: Callable[[Any], Any], stop: Any) -> None:
    """Keep the function, and end when the parent ends or says so."""
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then stops the workers
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel, stop), daemon=True).start()


def _end_with(*signals: Any) -> None:
    connection.wait(signals)
    os._exit(1)
