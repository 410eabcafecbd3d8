"""Advice on how to reduce the time that steps wait for data."""

import math
from typing import Any

import torch.utils.data as torch_data

from loaderkit.monitor.waits import WaitSummary
from loaderkit.system.cpus import Cpus

_MANY = 1000
_FEW_HITS = 0.5  # share of cache hits: below it, this is the first epoch or the cache is too small


def workers_needed(workers: int, summary: WaitSummary) -> int:
    """Return how many worker processes would keep up with the steps; at most 1,000.

    If steps wait for workers, all workers are busy, so one takes `workers` steps for a batch. Without workers, a batch
    takes the time that the host waits.
    """
    busy_s = summary.step_s - summary.wait_s
    batch_s = workers * summary.step_s if workers else summary.host_wait_s
    if busy_s * _MANY <= batch_s:
        return _MANY
    return max(workers + 1, math.ceil(batch_s / busy_s - 1e-9))


def remedy(summary: WaitSummary, loader: object, *, cpus: int | None = None) -> str:
    """Return advice in sentences. `cpus` is the number of CPUs that this process may use; None asks the system."""
    workers, engine, why = _who(loader)
    bench = "`loaderkit bench MODULE:FACTORY` measures engines and numbers of workers, and splits a batch's cost."
    if engine == "inline" and workers:
        return f"This process makes the batches, despite num_workers={workers} ({why}): make a batch cheaper. {bench}"
    said = [
        "More worker processes would help."
        if workers is None
        else _more_workers(workers, summary, cpus or Cpus.detect().usable)
    ]
    downloads = getattr(loader, "downloads", None)
    if downloads is not None and downloads.hits < _FEW_HITS * downloads.opened:
        said[0] = (
            f"Only {downloads.hit_rate:.0%} of the shards were in the cache when they were opened: the store or the network "
            f"may be what limits the steps, and `loaderkit doctor URL` measures them. {said[0]}"
        )
    if workers and engine == "torch" and not isinstance(getattr(loader, "dataset", None), torch_data.IterableDataset):
        said.append("engine='ring' transfers large batches faster.")
    if workers and engine == "threads":
        said.append(
            "Only one thread at a time runs Python: if samples take much computing, processes are faster (engine='ring')."
        )
    if workers:
        said.append("If batches differ in cost, a larger prefetch_factor evens that out.")
    return " ".join([*said, bench])


def _who(loader: object) -> tuple[int | None, str | None, str]:
    """Return a loader's number of workers, its engine, and why that engine was chosen; None for what is unknown."""
    config: Any = getattr(loader, "config", loader)
    workers, engine, why = getattr(config, "num_workers", None), getattr(config, "engine", None), ""
    describe = getattr(loader, "describe", None)
    if callable(describe):
        found = describe()
        engine, why = found.engine, found.why
        if found.num_workers or workers == "auto":
            workers = found.num_workers
    return workers if isinstance(workers, int) else None, engine, why


def _more_workers(workers: int, summary: WaitSummary, cpus: int) -> str:
    needed = workers_needed(workers, summary)
    now = f"num_workers is {workers}"
    if needed >= _MANY:
        return f"{now}, and the steps do almost nothing but wait: no number of workers keeps up. Make a batch cheaper."
    if needed <= cpus:
        return f"{now}; {needed} would keep up (num_workers={needed})."
    have = f"{now}; {needed} would be needed to keep up, and this process may use {cpus} CPU{'s' * (cpus > 1)}"
    if workers >= cpus:
        return f"{have}: more workers would not help. Make a batch cheaper, or get more CPUs."
    return f"{have}: use num_workers={cpus}, and make a batch cheaper."
