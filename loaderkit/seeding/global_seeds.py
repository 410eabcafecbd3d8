"""Seeds of a process's own global generators, for what is drawn outside samples."""

import os
import random

import numpy as np
import torch

from loaderkit.seeding.keys import derive_seed


def seed_all(seed: int) -> None:
    """Seed torch, on all devices that there are, numpy and `random`."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # the same, without formatting the stack for each kind of device that may yet appear: 10 ms and 1.3 MB in a new process
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def seed_worker(worker_id: int, *, rank: int | None = None) -> None:
    """Seed torch, numpy and `random` differently in each worker, epoch and rank.

    A `worker_init_fn` for a bare `torch.utils.data.DataLoader`. Workers start
    anew each epoch unless they persist, and torch draws their base seed from
    the main process's generator: seed that, and the run is reproducible.

    Args:
        worker_id: As the DataLoader gives it.
        rank: This process's rank; found in torch.distributed or the RANK
            variable by default. Where neither is set in a spawned worker, give
            it: `functools.partial(seed_worker, rank=rank)`.
    """
    if rank is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank = torch.distributed.get_rank()
        else:
            rank = int(os.environ.get("RANK", 0))
    seed = derive_seed("worker", torch.initial_seed(), worker_id, rank)
    seed_all(seed)
