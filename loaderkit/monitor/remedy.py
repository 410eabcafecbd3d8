"""What would make a step wait less, in numbers."""

import math
from typing import Any

from loaderkit.monitor.waits import WaitSummary
from loaderkit.system.process_pool import usable_cpus

_MANY = 1000


def workers_needed(workers: int, summary: WaitSummary) -> int:
    """Return how many worker processes would make batches as fast as the steps can take them.

    Workers that are waited for need the step's whole time for a batch. Without workers
    the host needs the time that it waits.

    Args:
        workers: How many there are now.
        summary: The mean step.
    """
    busy_s = summary.step_s - summary.wait_s
    batch_s = workers * summary.step_s if workers else summary.host_wait_s
    if busy_s * _MANY <= batch_s:
        return _MANY
    return max(workers + 1, math.ceil(batch_s / busy_s - 1e-9))


def remedy(summary: WaitSummary, loader: Any) -> str:
    """Say what would help.

    Args:
        summary: The mean step.
        loader: Where the batches come from: a Loader, a DataLoader, or anything else.
    """
    workers, engine, why = _who(loader)
    bench = "`loaderkit bench MODULE:FACTORY` measures engines and numbers of workers, and splits a batch's cost."
    if engine == "inline" and workers:
        return f"Batches are made in this process, in spite of num_workers={workers} ({why}): make a batch cheaper. {bench}"
    said = ["More worker processes would help." if workers is None else _more_workers(workers, summary)]
    if workers and engine == "torch":
        said.append("engine='ring' passes large batches on faster.")
    if workers and engine == "threads":
        said.append("Threads run Python one at a time: data that computes is made faster by processes, engine='ring'.")
    if workers:
        said.append("Where batches differ in their cost, a larger prefetch_factor evens them out.")
    return " ".join([*said, bench])


def _who(loader: Any) -> tuple[int | None, str | None, str]:
    """Return how many workers a loader has, who makes its batches, and why: as it says itself, or by its settings."""
    config: Any = getattr(loader, "config", loader)
    workers, engine, why = getattr(config, "num_workers", None), getattr(config, "engine", None), ""
    describe = getattr(loader, "describe", None)
    if callable(describe):
        found = describe()
        engine, why = found.engine, found.why
        if found.num_workers or workers == "auto":
            workers = found.num_workers
    return workers if isinstance(workers, int) else None, engine, why


def _more_workers(workers: int, summary: WaitSummary) -> str:
    needed, cpus = workers_needed(workers, summary), usable_cpus()
    now = f"num_workers is {workers}"
    if needed >= _MANY:
        return f"{now}, and the steps do next to nothing else: no number of workers keeps up. Make a batch cheaper."
    if needed <= max(cpus, 1):
        return f"{now}; {needed} would keep up (num_workers={needed})."
    return (
        f"{now}; {needed} would be needed to keep up, and this process may use {cpus} CPU{'s' * (cpus > 1)}: take as many, "
        "and make a batch cheaper."
    )
