"""Measure what seeding samples costs, compared with a DataLoader that seeds none.

A sample is a numpy computation of 10 to 1,000 us, in batches of 32, shuffled, with 0 and 2 workers. At 100 us the other peers take
part. The samples draw nothing and do not say so, except in `draws_nothing`; torch is then seeded for each. "All seeded" seeds all
three for each sample, as for data that uses them. "Seeded by hand" is a
DataLoader whose dataset seeds torch, numpy and `random` itself. The reference is a DataLoader with as many workers. The limit is a
loop over the dataset without loader or collate (half of it with 2 workers).
"""

import copy
import random
import time
from functools import partial

import numpy as np
import torch
from lib.contenders import REFERENCE, Job, by_torch, compare, ours
from lib.harness import Row, drain, parse_options, record
from report.declare import BOTH, LOADER, Report, cell, each, over
from torch import Tensor
from torch.utils.data import DataLoader

BATCH = 32
UNSEEDED = f"{LOADER}, draws_nothing"
SEEDED = f"{LOADER}, all seeded"
BY_HAND = f"{REFERENCE}, seeded by hand"
TARGET_US = 100

REPORT = Report(minutes=4.5)
REPORT.target(
    "Samples of 100 us, each seeded, 0 and 2 workers: throughput over `DataLoader`'s",
    each("throughput_ratio_to_reference", contender=LOADER, sample_us="100", workers=BOTH),
    least=0.93,
)
REPORT.target(
    "Samples of 100 us, 0 and 2 workers: throughput over that of a `DataLoader` whose dataset seeds each by hand",
    over(
        *(
            each("us_per_sample", contender=name, sample_us="100", workers=BOTH)
            for name in ("DataLoader, seeded by hand", LOADER)
        )
    ),
    least=0.98,  # the same work: equal, but for noise
)
for workers in BOTH:
    REPORT.line(
        f"100 us a sample, batch 32, {workers} workers, nothing drawn and nothing declared: throughput over `DataLoader`'s",
        cell("{} x", each("throughput_ratio_to_reference", contender=LOADER, workers=workers, sample_us="100")),
        cell(
            "{} against {} us a sample",
            each("us_per_sample", contender=(LOADER, "DataLoader"), workers=workers, sample_us="100"),
        ),
    )
    for text, end in (("", ""), (" that draws nothing", ", draws_nothing")):
        where = {"workers": workers, "sample_us": "100"}
        REPORT.speed(f"100 us a sample{text}, {workers} workers", "us_per_sample", where, f"{LOADER}{end}")
REPORT.line(
    "The same where the dataset says that it draws nothing, 0 and 2 workers: throughput over `DataLoader`'s",
    *(
        cell(
            text, each(f"throughput_ratio_to_{to}", contender=f"{LOADER}, draws_nothing", workers=BOTH, sample_us="100")
        )
        for text, to in (("{} x, {} x", "reference"), ("over a bare loop's: {} x, {} x", "limit"))
    ),
)
REPORT.chart(
    "Throughput over DataLoader's, by the cost of a sample in us: torch, numpy and random seeded for each, or not (more is better)",
    "throughput_ratio_to_reference",
    panels=("workers",),
    x="sample_us",
    mark=0.93,
)


class Computed:
    """Samples that take the same time each, calibrated when the dataset is made."""

    draws_nothing = False

    def __init__(self, size: int, sample_us: float) -> None:
        self._size = size
        self._angles = np.linspace(0, 1, 4096)
        self._terms = 64
        for _ in range(4):
            self._terms = max(1, round(self._terms * sample_us / self._measure_us()))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        left, total = self._terms, np.zeros(32, dtype=np.float32)
        while left > 0:
            total += np.sin(self._angles[:left] * index).sum(dtype=np.float32)
            left -= len(self._angles)
        return torch.from_numpy(total), index % 10

    def _measure_us(self) -> float:
        taken = []
        for index in range(200):
            start = time.perf_counter()
            self[index]
            taken.append(time.perf_counter() - start)
        return float(np.median(taken)) * 1e6


class SeededByHand:
    """A dataset that seeds the three generators for each of its samples, as fast as Python can."""

    def __init__(self, data: Computed) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        torch.default_generator.manual_seed(index)
        np.random.seed(index)
        random.seed(index)
        return self._data[index]


def main() -> None:
    options = parse_options(__doc__)
    rows: list[Row] = []
    for workers in (0, 2):
        for sample_us in (10, 30, 100, 300, 1000):
            seconds = 0.05 if options.quick else 0.25
            size = round(seconds * max(1, workers) / (sample_us * 1e-6) / BATCH + 1) * BATCH
            data, at_target = Computed(size, sample_us), sample_us == TARGET_US
            said = copy.copy(data)
            said.draws_nothing = True
            by_hand = Job(dataset=SeededByHand(data), batch_size=BATCH)
            rows += compare(
                Job(dataset=data, batch_size=BATCH),
                workers,
                rounds=3 if options.quick else 15 if at_target else 7,
                limit_s=45 if at_target else 10,
                bare=partial(run, data),
                columns={"sample_us": sample_us},
                more={
                    UNSEEDED: partial(ours, Job(dataset=said, batch_size=BATCH), workers, "auto"),
                    SEEDED: partial(
                        ours, Job(dataset=data, batch_size=BATCH), workers, "auto", global_generators="seed"
                    ),
                    BY_HAND: partial(by_torch, by_hand, workers, DataLoader),
                },
                alone=not at_target,
            )
    record("per_sample", rows, options)


def run(data: Computed) -> None:
    drain(data[index] for index in range(len(data)))


if __name__ == "__main__":
    main()
