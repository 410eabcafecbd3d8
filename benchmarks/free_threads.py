"""Measure threads on a Python without the GIL, next to the ring's and DataLoader's processes: 2 workers, shuffled batches.

Three jobs. *python* is 300 us of Python work a sample, *jpeg* a JPEG of 256 x 256 pixels that Pillow decodes, *large* batches of 9.6 MB.
Rates are from the first batch to the end of an epoch; the workers of both are forked. `first_batch_ms` is from making a loader to its first
batch, with the fork server for those that start processes. Each run is a process of its own, which has imported everything and started nothing.

Needs CPython with --disable-gil, without torchvision: importing that switches the GIL on. `memory.py` runs there too.
"""

import io
import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from lib.apart import once
from lib.harness import LeftOutError, Row, parse_options, record, spread, tell, turns
from PIL import Image
from report.declare import LOADER, Report, cell, each
from torch import Tensor
from torch.utils.data import DataLoader

import loaderkit as lk
from loaderkit.system.threads import threads_run_together

WORKERS, LIMIT_S = 2, 60
THREADS, RING, REFERENCE = f"{LOADER}, threads", f"{LOADER}, ring", "DataLoader"
CONTENDERS = (THREADS, RING, REFERENCE)
JOBS = ("python", "jpeg", "large")

REPORT = Report(minutes=6)
REPORT.target(
    "Threads without the GIL over the ring, 2 workers: Python work, JPEGs, batches of 9.6 MB",
    each("over_ring", contender=THREADS, job=JOBS),
    least=1,
    unit=" x",
)
REPORT.line(
    "Threads on Python without the GIL: Python work, JPEGs, batches of 9.6 MB, over `DataLoader`",
    cell("{} x, {} x, {} x", each("over_dataloader", contender=THREADS, job=JOBS)),
    cell("the ring {} x, {} x, {} x", each("over_dataloader", contender=RING, job=JOBS)),
)
REPORT.chart(
    "Python without the GIL, 2 workers: throughput over DataLoader's (more is better)",
    "over_dataloader",
    panels=("job",),
    mark=1,
)


class Samples:
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


class Work(Samples):
    draws_nothing = thread_safe = True

    def __getitem__(self, index: int) -> int:
        end = time.thread_time() + 300e-6
        while time.thread_time() < end:
            index = (index * 7919 + 1) % 2**31
        return index


class Pictures(Samples):
    draws_nothing = thread_safe = True

    def __init__(self, size: int) -> None:
        super().__init__(size)
        draw = np.random.default_rng(0)
        slope = np.add.outer(np.arange(256), np.arange(256))[..., None] // 2
        self.files = [self._encode(slope + draw.integers(0, 60, (256, 256, 3))) for _ in range(16)]

    @staticmethod
    def _encode(pixels: Any) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        return file.getvalue()

    def __getitem__(self, index: int) -> Tensor:
        picture = Image.open(io.BytesIO(self.files[index % 16])).convert("RGB")
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


class Large(Samples):
    draws_nothing = thread_safe = True

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((75_000,), float(index))


def dataset_of(job: str, batches: int) -> tuple[Samples, int]:
    """Return a job's data and batch size."""
    kind, size = {"python": (Work, 32), "jpeg": (Pictures, 32), "large": (Large, 32)}[job]
    return kind(size * batches), size


def make(name: str, data: Samples, size: int, method: str) -> Any:
    if name == THREADS:
        return lk.Loader(data, size, shuffle=True, num_workers=WORKERS)
    settings: dict[str, Any] = {"shuffle": True, "num_workers": WORKERS, "multiprocessing_context": method}
    return lk.Loader(data, size, engine="ring", **settings) if name == RING else DataLoader(data, size, **settings)  # type: ignore[arg-type]


def rate(name: str, job: str, batches: int) -> float:
    """Return batches a second after the first."""
    loader = make(name, *dataset_of(job, batches), "fork")
    if name == THREADS and (found := loader.describe().engine) != "threads":
        raise RuntimeError(f"free_threads: the engine is {found}, wanted threads.")
    kept = iter(loader)
    next(kept)
    start, count = time.perf_counter(), 0
    for _ in kept:
        count += 1
    return count / (time.perf_counter() - start)


def first_batch(name: str) -> float:
    """Return the milliseconds from making a loader to its first batch."""
    data, size = dataset_of("jpeg", 100)
    start = time.perf_counter()
    next(iter(make(name, data, size, "forkserver")))
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    options = parse_options(__doc__)
    if not threads_run_together():
        tell("free_threads: left out: this Python has a GIL.")
        return
    rounds, batches = (
        (1, {"python": 20, "jpeg": 20, "large": 40})
        if options.quick
        else (15, {"python": 150, "jpeg": 150, "large": 600})
    )
    rates: dict[tuple[str, str], dict[int, float]] = {(job, name): {} for job in JOBS for name in CONTENDERS}
    first: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        for name in [CONTENDERS[place] for place in turns(len(CONTENDERS), number)]:
            try:
                for job in JOBS:
                    rates[job, name][number] = once(partial(rate, name, job, batches[job]), limit_s=LIMIT_S)
                if number < 5:
                    first[name].append(once(partial(first_batch, name), limit_s=LIMIT_S))
            except LeftOutError as error:
                tell(f"{name}: a run of it left out: {error}.")
        tell(f"round {number + 1} of {rounds}")

    def over(job: str, name: str, other: str) -> float:
        both = rates[job, name].keys() & rates[job, other].keys()
        return statistics.median(rates[job, name][number] / rates[job, other][number] for number in both)

    rows: list[Row] = []
    for job, name in rates:
        low, middle, high = spread(rates[job, name].values())
        rows.append(
            {
                "job": job,
                "contender": name,
                "batches_per_s": middle,
                "batches_per_s_q1": low,
                "batches_per_s_q3": high,
                "over_ring": over(job, name, RING),
                "over_dataloader": over(job, name, REFERENCE),
                "first_batch_ms": statistics.median(first[name]) if job == "jpeg" else float("nan"),
                "repeats": len(rates[job, name]),
            }
        )
    record("free_threads", rows, options)


if __name__ == "__main__":
    main()
