"""Checks of a dataset and its loader: pickling, private random generators, many objects, the memory of batches."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from loaderkit.cli.bench import Setting, Subject
from loaderkit.cli.doctor.finding import MIB, Finding, in_units
from loaderkit.cli.doctor.host import Host
from loaderkit.engine.description import batches_ahead
from loaderkit.testing import find_private_generators, find_unpicklable
from loaderkit.testing.generators import reachable

_MANY = 100_000  # objects in a container that should be packed
_SHOWN = 8  # paths in a line
_IN_USE = 4  # batches that the trainer holds, about


def check_data(subject: Subject, host: Host, *, workers: int, ranks: int) -> Iterator[Finding]:
    """Yield findings about a dataset.

    Args:
        subject: The dataset and its loader's settings.
        host: The machine.
        workers: Workers of each rank.
        ranks: Ranks on this machine.
    """
    yield from _check_pickling(subject, host)
    yield from _check_generators(subject.dataset)
    yield from _check_records(subject.dataset)
    batches = list(islice(iter(subject.loader(Setting(0, "inline"))), 1))
    if not batches:
        yield Finding("wrong", "the loader has no batches", "Use a smaller batch size, or tail='keep'.")
        return
    yield from _check_batch(*measure(batches[0]), host, subject=subject, workers=workers, ranks=ranks)


def _check_pickling(subject: Subject, host: Host) -> Iterator[Finding]:
    wanted = subject.config.multiprocessing_context or host.start_method
    parts = {"dataset": subject.dataset, "collate_fn": subject.config.collate_fn}
    found = {where: why for name, part in parts.items() for where, why in find_unpicklable(part, name=name).items()}
    for where, why in islice(found.items(), _SHOWN):
        yield Finding(
            "note" if wanted == "fork" else "wrong",
            f"{where} does not pickle ({why})",
            f"Workers started by {'forkserver or spawn' if wanted == 'fork' else wanted} can't receive it. "
            "Open files and connections through loaderkit.Handle, and define functions at module level.",
        )
    if not found:
        yield Finding("ok", "the dataset pickles: any start method works")


def _check_generators(dataset: Any) -> Iterator[Finding]:
    paths = find_private_generators(dataset)
    if paths:
        yield Finding(
            "wrong",
            f"the dataset keeps random generators: {', '.join(paths[:_SHOWN])}",
            "Each worker's copy draws the same numbers, and a resume restarts it. Draw from loaderkit.sample_rng(), "
            "or from the global functions of torch, numpy or random.",
        )
    else:
        yield Finding("ok", "the dataset keeps no random generator")


def _check_records(dataset: Any) -> Iterator[Finding]:
    for path, value in reachable(dataset, "dataset"):
        if isinstance(value, list | tuple | dict | set) and len(value) >= _MANY:
            some = islice(value.values() if isinstance(value, dict) else value, 100)
            numbers = all(isinstance(each, int | float | None) for each in some)
            yield Finding(
                "note",
                f"{path}: {len(value):,} Python objects; each worker copies them as it reads them",
                "They are numbers: keep them in an array." if numbers else "Pack them with loaderkit.share.",
            )


def _check_batch(
    size: int, tensors: int, host: Host, *, subject: Subject, workers: int, ranks: int
) -> Iterator[Finding]:
    """Yield findings about batches of `size` bytes in `tensors` tensors."""
    factor = subject.config.prefetch_factor
    ahead_torch = (factor or 2) * workers
    ahead = ahead_torch if subject.engine == "torch" else batches_ahead(size, workers, factor)
    needed = size * (ahead + _IN_USE) * ranks
    line = f"a batch has {in_units(size)} in {tensors} tensors"
    if workers:
        line += (
            f"; up to {in_units(needed)} in memory: {ahead} batches ahead and about {_IN_USE} in use, on {ranks} ranks"
        )
    if host.memory is not None and needed > host.memory // 2:
        remedy = "Use fewer workers, a smaller prefetch_factor, or smaller batches."
        yield Finding("wrong", f"{line}; memory: {in_units(host.memory)}", remedy)
    else:
        yield Finding("ok", line)
    if not workers:
        return
    shared = size * ahead_torch * ranks
    if host.shared_memory is not None and shared > host.shared_memory[0]:
        yield Finding(
            "wrong" if subject.engine == "torch" else "note",
            f"/dev/shm has {in_units(host.shared_memory[0])} free, torch's workers would need {in_units(shared)}",
            'Use engine="ring", which does not need it, or give the container more (docker: --shm-size).',
        )
    if host.open_files is not None and tensors * ahead_torch * 2 > host.open_files[0]:
        yield Finding(
            "note",
            f"{tensors} tensors a batch, {ahead_torch} batches ahead: torch's workers may need more than "
            f"{host.open_files[0]:,} open files",
            'Raise the limit with `ulimit -n`, or use engine="ring".',
        )
    if size > 64 * MIB:
        yield Finding(
            "note",
            f"a batch of {in_units(size)} is slow to copy",
            "Keep pictures as uint8 and tokens as uint16 until they are on the device.",
        )


def measure(batch: Any) -> tuple[int, int]:
    """Return the size in bytes of a batch's tensors and arrays, and their number."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return int(batch.nbytes), 1
    if isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, list | tuple):
        parts = list(batch)
    else:
        parts = list(getattr(batch, "__dict__", {}).values())
    found = [measure(part) for part in parts]
    return sum(size for size, _ in found), sum(tensors for _, tensors in found)
