"""What torch's `get_worker_info()` returns: in worker processes and, since torch 2.14, in threads that make batches."""

from typing import Any

import torch.utils.data as torch_data
from torch.utils.data._utils import worker as torch_worker


def in_worker_process() -> bool:
    """Return whether this is a worker process, whose generators and memory nobody else uses."""
    info: object = torch_data.get_worker_info()
    return info is not None and getattr(info, "worker_method", None) != "thread"


def with_dataset(info: object, dataset: Any) -> torch_worker.WorkerInfo:
    """Return a copy of a worker's info with another dataset."""
    names = ("id", "num_workers", "seed", "rng", "worker_method")  # the last two since torch 2.14
    about: dict[str, Any] = {name: getattr(info, name) for name in names if hasattr(info, name)}
    return torch_worker.WorkerInfo(**about, dataset=dataset)


def tell_thread(number: int, threads: int, seed: int, dataset: object) -> None:
    """Let `get_worker_info()` in this thread return its number among a loader's threads, if torch has an info by thread."""
    of_thread: Any = getattr(torch_worker, "_thread_local_worker_info", None)
    if of_thread is not None:
        about: dict[str, Any] = {"id": number, "num_workers": threads, "seed": seed, "dataset": dataset}
        of_thread.worker_info = torch_worker.WorkerInfo(**about, worker_method="thread")
