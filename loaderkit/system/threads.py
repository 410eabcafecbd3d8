"""One thread for each worker: libraries that start a thread per core would otherwise start workers x cores threads."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

# Done here, not in each forked worker: the import takes 5 ms, and the first look at the loaded libraries 7 ms.
_threadpoolctl: Any = import_module("threadpoolctl") if find_spec("threadpoolctl") else None
if _threadpoolctl is not None:
    _threadpoolctl.ThreadpoolController()
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")


class _Thread(threading.local):
    is_reader = False
    wanted: Callable[[], bool] | None = None


_thread = _Thread()


class Cancelled(BaseException):
    """Stops the reading of a batch that is no longer wanted; a dataset's `except Exception` does not catch it."""


def mark_reader(wanted: Callable[[], bool]) -> None:
    """Mark this thread as one of several that read for a loader; `wanted` says whether its batch is still wanted."""
    _thread.is_reader, _thread.wanted = True, wanted


def until_cancelled(samples: list[int]) -> Iterator[int]:
    """Yield the samples; in a reader thread, check before each one that the batch is still wanted.

    Raises:
        Cancelled: If the batch is no longer wanted.
    """
    wanted = _thread.wanted
    for sample in samples:
        if wanted is not None and not wanted():
            raise Cancelled("the loader was closed")
        yield sample


def threads_run_together() -> bool:
    """Return whether threads of this process run Python at the same time: whether there is no global interpreter lock."""
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # from Python 3.13
    return enabled is not None and not enabled()


def threads_of_a_read() -> int:
    """Return how many threads a read may use: 1 if several threads read at the same time, else as many as torch uses."""
    return 1 if _thread.is_reader else torch.get_num_threads()


def thread_pools() -> object:
    """Return threadpoolctl's controller of the loaded BLAS and OpenMP; None if threadpoolctl is not installed.

    A parent passes it to the workers that it forks: each would take 7 ms and 1.2 MB to make its own.
    """
    return None if _threadpoolctl is None else _threadpoolctl.ThreadpoolController()


def limit_threads(pools: Any = None) -> None:
    """Limit torch, BLAS, OpenMP, OpenCV and pyarrow to one thread in this process, a worker.

    BLAS and OpenMP that are already loaded are limited only if threadpoolctl is installed. A `worker_init_fn` runs later
    and may raise the limits.

    Args:
        pools: The `thread_pools()` of the parent that forked this process; None makes new ones.
    """
    torch.set_num_threads(1)
    for variable in _VARIABLES:  # for libraries that are loaded later
        os.environ.setdefault(variable, "1")
    pools = thread_pools() if pools is None else pools
    if pools is not None:
        pools.limit(limits=1)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].set_cpu_count(1)
