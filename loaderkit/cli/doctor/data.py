"""Checks of a dataset and its loader: what does not pickle, what draws or grows in workers, what batches take."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from loaderkit.cli.bench.subject import Setting, Subject
from loaderkit.cli.doctor.finding import MIB, Finding, in_units
from loaderkit.cli.doctor.host import Host
from loaderkit.engine.description import batches_ahead
from loaderkit.testing import find_private_generators, find_unpicklable
from loaderkit.testing.generators import reachable

_MANY = 100_000  # objects in one container, from which they are worth packing
_SHOWN = 8  # paths in a line
_HELD = 4  # batches in use by the trainer, about


def check_data(subject: Subject, host: Host, *, workers: int, ranks: int) -> Iterator[Finding]:
    """Yield what there is to say of a dataset that so many workers of so many ranks read on this machine."""
    yield from _check_pickling(subject, host)
    yield from _check_generators(subject.dataset)
    yield from _check_records(subject.dataset)
    batches = list(islice(iter(subject.loader(Setting(0, "inline"))), 1))
    if not batches:
        yield Finding("wrong", "the loader has no batches", "A smaller batch size, or tail='keep'.")
        return
    yield from check_batch(*measure(batches[0]), host, subject=subject, workers=workers, ranks=ranks)


def _check_pickling(subject: Subject, host: Host) -> Iterator[Finding]:
    wanted = subject.config.multiprocessing_context or host.start_method
    parts = {"dataset": subject.dataset, "collate_fn": subject.config.collate_fn}
    found = {where: why for name, part in parts.items() for where, why in find_unpicklable(part, name=name).items()}
    for where, why in islice(found.items(), _SHOWN):
        yield Finding(
            "note" if wanted == "fork" else "wrong",
            f"{where} does not pickle ({why})",
            f"Workers that are started by {'forkserver or spawn' if wanted == 'fork' else wanted} can't have it. "
            "loaderkit.Handle opens files and connections in each process; a function has to be a module's.",
        )
    if not found:
        yield Finding("ok", "the dataset pickles: workers may be started in any way")


def _check_generators(dataset: Any) -> Iterator[Finding]:
    paths = find_private_generators(dataset)
    if paths:
        yield Finding(
            "wrong",
            f"random generators of the dataset's own: {', '.join(paths[:_SHOWN])}",
            "Each worker gets a copy that draws the same numbers, and a resume starts it anew. Draw from loaderkit.sample_rng(), "
            "or from torch's, numpy's or random's global functions.",
        )
    else:
        yield Finding("ok", "no random generator of the dataset's own was found")


def _check_records(dataset: Any) -> Iterator[Finding]:
    for path, value in reachable(dataset, "dataset"):
        if isinstance(value, list | tuple | dict | set) and len(value) >= _MANY:
            some = islice(value.values() if isinstance(value, dict) else value, 100)
            numbers = all(isinstance(each, int | float | None) for each in some)
            yield Finding(
                "note",
                f"{path}: {len(value):,} Python objects, of which each worker gets a copy as it reads them",
                "They are numbers: keep them in an array." if numbers else "Pack them by loaderkit.share.",
            )


def check_batch(size: int, leaves: int, host: Host, *, subject: Subject, workers: int, ranks: int) -> Iterator[Finding]:
    """Yield what there is to say of batches of so many bytes in so many tensors."""
    factor = subject.config.prefetch_factor
    by_torch = (factor or 2) * workers
    prefetch = by_torch if subject.engine == "torch" else batches_ahead(size, workers, factor)
    under_way = size * (prefetch + _HELD) * ranks
    said = f"a batch has {in_units(size)} in {leaves} tensors"
    if workers:
        said += f"; {in_units(under_way)} are under way at most: {prefetch} ahead and about {_HELD} in use, of {ranks} ranks"
    if host.memory is not None and under_way > host.memory // 2:
        remedy = "Fewer workers, a smaller prefetch_factor, or smaller batches."
        yield Finding("wrong", f"{said}; memory: {in_units(host.memory)}", remedy)
    else:
        yield Finding("ok", said)
    if not workers:
        return
    shared = size * by_torch * ranks
    if host.shared_memory is not None and shared > host.shared_memory[0]:
        yield Finding(
            "wrong" if subject.engine == "torch" else "note",
            f"/dev/shm has {in_units(host.shared_memory[0])} free, torch's workers would need {in_units(shared)}",
            'engine="ring" does not use it; or give the container more (docker: --shm-size).',
        )
    if host.open_files is not None and leaves * by_torch * 2 > host.open_files[0]:
        yield Finding(
            "note",
            f"{leaves} tensors a batch, {by_torch} batches ahead: torch's workers may need more than {host.open_files[0]:,} "
            "open files",
            '`ulimit -n`, or engine="ring".',
        )
    if size > 64 * MIB:
        yield Finding(
            "note", f"a batch of {in_units(size)} takes long to copy", "uint8 pictures and uint16 tokens take less."
        )


def measure(batch: Any) -> tuple[int, int]:
    """Return the bytes of a batch's tensors and arrays, and how many these are."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return int(batch.nbytes), 1
    if isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, list | tuple):
        parts = list(batch)
    else:
        parts = list(getattr(batch, "__dict__", {}).values())
    found = [measure(part) for part in parts]
    return sum(size for size, _ in found), sum(leaves for _, leaves in found)
