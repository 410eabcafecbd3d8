"""Measure the order alone: time to the first batch, memory, and cost per index, as the data grows.

Batches of 1,024 of a dataset that costs nothing. Memory is the peak growth of the resident size of a fresh process; for
ours also what Python and numpy allocate. `RandomSampler` and `torch.randperm` run as long as they fit in memory.
"""

import multiprocessing
import resource
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lib.harness import Row, interleave, parse_options, record, spread
from report.declare import Report, cell, each
from torch.utils.data import DataLoader

import loaderkit as lk

BATCH = 1024
STRETCH = 1 << 15  # indices asked for at a time, as a Loader does
LOADER, SAMPLER, RANDPERM = "lk.Loader", "DataLoader (RandomSampler)", "torch.randperm"
BYTES_PER_SAMPLE = {SAMPLER: 60, RANDPERM: 10}  # measured, rounded up

REPORT = Report(minutes=1.5, group="Order and resume")
for text, column, most, unit in (
    ("First batch of 10^12 shuffled samples", "first_batch_ms", 50, " ms"),
    ("Its memory", "allocated_peak_mb", 10, " MB"),
):
    REPORT.target(text, each(column, contender=LOADER, samples=str(10**12)), most=most, unit=unit)
REPORT.line(
    "Shuffling 10^12 samples: first batch, memory",
    cell("{} ms, {} MB", each("first_batch_ms", "allocated_peak_mb", contender=LOADER, samples=str(10**12))),
    cell(
        "`RandomSampler` on 10^8: {} ms, {} MB",
        each("first_batch_ms", "rss_growth_mb", contender="DataLoader (RandomSampler)", samples=str(10**8)),
    ),
)
REPORT.speed("first shuffled batch of 10^8", "first_batch_ms", {"samples": str(10**8)}, timed=False)
REPORT.chart(
    "The order alone, by samples (less is better; targets: 50 ms, 10 MB)",
    {"first_batch_ms": "first batch (ms)", "rss_growth_mb": "memory (MB)", "ns_per_index": "ns per index"},
    x="samples",
    log=True,
)


class Indices:
    """A dataset whose samples are their indices, read a batch at a time."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def as_is(samples: list[int]) -> list[int]:
    return samples


def batches(name: str, size: int) -> Iterator[Any]:
    dataset: Any = Indices(size)
    if name == LOADER:
        return iter(lk.Loader(dataset, BATCH, shuffle=True, collate_fn=as_is))
    if name == SAMPLER:
        return iter(DataLoader(dataset, BATCH, shuffle=True, collate_fn=as_is))
    return iter(torch.split(torch.randperm(size), BATCH))


def start(name: str, size: int) -> None:
    next(batches(name, size))


def walk(name: str, size: int, indices: int) -> float:
    """Return the seconds that the order of so many indices takes, its start included."""
    began = time.perf_counter()
    if name == LOADER:
        order = lk.Shuffled(size)
        for low in range(0, indices, STRETCH):
            order.indices(0, low, min(low + STRETCH, indices))
    elif name == SAMPLER:
        for _ in torch.utils.data.RandomSampler(range(size)):
            pass
    else:
        torch.randperm(size)
    return time.perf_counter() - began


def in_own_process(name: str, size: int, indices: int) -> dict[str, float]:
    """Measure a first batch once, its memory, and the walk through the indices."""
    start(name, BATCH)  # what is loaded and started once
    before, peak_before = resident_mb(), peak_mb()
    began = time.perf_counter()
    kept = batches(name, size)
    next(kept)
    first = time.perf_counter() - began
    found = {"first": first, "rss_mb": max(resident_mb() - before, peak_mb() - max(peak_before, before), 0.0)}
    del kept
    if name == LOADER:
        tracemalloc.start()
        start(name, size)
        found["traced_mb"] = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
    if name != SAMPLER or size <= 10**7:  # else minutes
        found["walk"] = walk(name, size, indices)
    return found


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def main() -> None:
    options = parse_options(__doc__)
    most = 10**7 if options.quick else 10**8
    cases = [(LOADER, 10**power) for power in (3, 6, 7, 8, 10, 12)]
    for name in (SAMPLER, RANDPERM):
        sizes = [10**power for power in (3, 6, 7, 8) if 10**power <= most]
        cases += [(name, size) for size in sizes if size * BYTES_PER_SAMPLE[name] < 0.7 * available_bytes()]
    quick_cases = [case for case in cases if case[0] == LOADER or case[1] <= 10**6]
    contenders = {str(case): lambda case=case: start(*case) for case in quick_cases}
    first = interleave(contenders, rounds=5 if options.quick else 30)
    rows: list[Row] = []
    for name, size in cases:
        indices = min(size, most)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            own = process.submit(in_own_process, name, size, indices).result()
        repeats = list(first.get(str((name, size)), {0: own["first"]}).values())
        rows.append(
            {
                "contender": name,
                "samples": size,
                "first_batch_ms": spread(repeats)[1] * 1e3,
                "rss_growth_mb": own["rss_mb"],
                "allocated_peak_mb": own.get("traced_mb", ""),
                "ns_per_index": own["walk"] / indices * 1e9 if "walk" in own else "",
                "repeats": len(repeats),
            }
        )
    at = {(row["contender"], row["samples"]): row for row in rows}
    for row in rows:
        for name, column in ((SAMPLER, "first_batch_ratio_to_reference"), (RANDPERM, "first_batch_ratio_to_limit")):
            other = at.get((name, row["samples"]))
            row[column] = row["first_batch_ms"] / other["first_batch_ms"] if other else ""
    record("order", rows, options)


if __name__ == "__main__":
    main()
