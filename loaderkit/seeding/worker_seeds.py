"""Seeds for a process's global generators, for draws outside samples."""

import functools
import os
import random
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen

import numpy as np
import torch

from loaderkit.seeding.keys import derive_seed
from loaderkit.system.world import World


def seed_all(seed: int) -> None:
    """Seed torch on all its devices, numpy and `random`."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # torch.manual_seed also prepares devices that may come later: 10 ms and 1.3 MB in a new process
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def workers_seed(seed: int, rank: int, epoch: int) -> int:
    """Return the seed of the workers that a rank starts in an epoch, from the loader's seed."""
    return derive_seed("workers", seed, rank, epoch)


class _WithRank:
    """A `worker_init_fn` that brings this process's rank to workers that are not forked: they may not know it."""

    def __init__(self, function: Callable[..., None]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, worker_id: int, *, rank: int | None = None) -> None:
        self._function(worker_id, rank=rank)

    def __reduce__(self) -> str | tuple[object, ...]:
        starts_process = get_spawning_popen() is not None
        return (_with_rank, (_rank(),)) if starts_process else "seed_worker"


def _with_rank(rank: int) -> Callable[[int], None]:
    return functools.partial(seed_worker, rank=rank)


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", 0))


@_WithRank
def seed_worker(worker_id: int, *, rank: int | None = None) -> None:
    """Seed torch, numpy and `random` differently in each worker, epoch and rank.

    This is a `worker_init_fn` for `torch.utils.data.DataLoader`; `lk.Loader` does not need it. torch draws the workers'
    base seed from the main process's generator at each start of workers. Seed that generator and the run is
    reproducible. Persistent workers start once, so they are seeded once.

    Args:
        worker_id: The number that the DataLoader passes.
        rank: This process's rank. By default it comes from torch.distributed or the RANK variable in the process that
            starts the workers.

    Examples:
        >>> loader = torch.utils.data.DataLoader(range(4), num_workers=2, worker_init_fn=lk.seed_worker)
        >>> lk.seed_worker(0, rank=1)  # what each worker runs
    """
    seed_all(derive_seed("worker", torch.initial_seed(), worker_id, _rank() if rank is None else rank))


def torch_seed() -> int:
    """Return the seed of `torch.manual_seed`, to give as `seed=`.

    Lightning's `seed_everything` sets this seed too. The result is the same on every rank: with torch.distributed, rank
    0 sends its seed to the others, so all ranks must call this. If nothing has seeded torch, it is torch's random first
    seed. A resumed run needs the same seed again.

    Raises:
        RuntimeError: If there are several ranks, and no process group over which they could agree on a seed.

    Examples:
        >>> _ = torch.manual_seed(7)
        >>> loader = lk.Loader(range(10), shuffle=True, seed=lk.torch_seed())
        >>> loader.config.seed
        7
    """
    seed = torch.initial_seed()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        seeds = [seed]
        torch.distributed.broadcast_object_list(seeds, src=0)
        return seeds[0]
    if (size := World.detect().size) > 1:
        raise RuntimeError(
            f"torch_seed: {size} ranks, and no process group over which they could agree on a seed. Call "
            "torch.distributed.init_process_group first, or give the same integer as seed= on every rank."
        )
    return seed
