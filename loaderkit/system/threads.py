"""One thread for each worker: libraries that start a thread for each core would have workers x cores of them."""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

# Here, and not in each worker that is forked: its import takes 5 ms, and the first look at what is loaded 7; a later one 1.5.
_threadpoolctl: Any = import_module("threadpoolctl") if find_spec("threadpoolctl") else None
if _threadpoolctl is not None:
    _threadpoolctl.ThreadpoolController()
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")


class _Here(threading.local):
    is_reader = False
    wanted: Callable[[], bool] | None = None


_here = _Here()


class NotWanted(BaseException):
    """Nobody wants the batch any more that is being made. No `except Exception` of a dataset keeps it from ending."""


def is_reader(wanted: Callable[[], bool]) -> None:
    """Take note that this thread is one of several that read for a loader, and of how to find out whether its batch is still wanted."""
    _here.is_reader, _here.wanted = True, wanted


def while_wanted(samples: list[int]) -> Iterable[int]:
    """Return samples that are read one by one: in a reader, behind each it is asked whether they are still wanted.

    Raises:
        NotWanted: Where they are not.
    """
    return samples if _here.wanted is None else _while(_here.wanted, samples)


def _while(wanted: Callable[[], bool], samples: list[int]) -> Iterator[int]:
    for sample in samples:
        if not wanted():
            raise NotWanted("the loader was closed")
        yield sample


def threads_of_a_read() -> int:
    """Return how many threads a read may use: as many as torch; in a thread that is one of several readers, that one."""
    return 1 if _here.is_reader else torch.get_num_threads()


def thread_pools() -> Any:
    """Return what sets the numbers of threads of the BLAS and OpenMP that are loaded, where threadpoolctl is installed.

    For workers that are to be forked: each would take 7 ms and 1.2 MB to find them.
    """
    return None if _threadpoolctl is None else _threadpoolctl.ThreadpoolController()


def limit_threads(pools: Any = None) -> None:
    """Leave one thread to torch, BLAS, OpenMP, OpenCV and pyarrow in this process, a worker.

    BLAS and OpenMP that are loaded already are told by threadpoolctl, where that is
    installed. A `worker_init_fn` comes after this, and may give more.

    Args:
        pools: As this process's parent found them before it forked it; else they are looked for.
    """
    torch.set_num_threads(1)
    for variable in _VARIABLES:  # for what is loaded later
        os.environ.setdefault(variable, "1")
    pools = thread_pools() if pools is None else pools
    if pools is not None:
        pools.limit(limits=1)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].set_cpu_count(1)
