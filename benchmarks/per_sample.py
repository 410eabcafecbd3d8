"""Samples that cost something each: seeding every one of them, against a DataLoader that seeds none.

A sample is a numpy computation of 10 to 1,000 us, batches of 32, shuffled, with 0 and 2 workers.
The reference is the DataLoader with as many workers; the limit is a loop over the dataset, without
any loader and without collating (with 2 workers: half of it).
"""

import time
from typing import Any

import numpy as np
import torch
from harness import OURS, TORCH, Options, Row, drain, interleave, parse_options, ratio, report, spread
from torch import Tensor
from torch.utils.data import DataLoader

import loaderkit as lk

BATCH = 32
TARGET_US = 100
LOOP, LOADER, REFERENCE = "loop over the dataset", "lk.Loader", "DataLoader"


class Computed:
    """Samples that take the same time each, calibrated when the dataset is made."""

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


def compare(sample_us: int, workers: int, options: Options) -> list[Row]:
    seconds = 0.05 if options.quick else 0.25
    size = round(seconds * max(1, workers) / (sample_us * 1e-6) / BATCH + 1) * BATCH
    data = Computed(size, sample_us)
    settings: dict[str, Any] = {"num_workers": workers, "persistent_workers": True} if workers else {}
    dataset: Any = data
    ours = lk.Loader(data, BATCH, shuffle=True, **settings)
    theirs: DataLoader[Any] = DataLoader(dataset, BATCH, shuffle=True, **settings)
    contenders = {
        LOOP: lambda: drain(data[index] for index in range(size)),
        LOADER: lambda: drain(ours),
        REFERENCE: lambda: drain(theirs),
    }
    found = interleave(contenders, rounds=3 if options.quick else 21 if sample_us == TARGET_US else 7)
    found[LOOP] = {number: taken / max(1, workers) for number, taken in found[LOOP].items()}
    return [
        {
            "contender": name,
            "workers": workers,
            "sample_us": sample_us,
            "us_per_sample": middle / size * 1e6,
            "us_per_sample_q1": low / size * 1e6,
            "us_per_sample_q3": high / size * 1e6,
            "throughput_ratio_to_reference": 1 / ratio(found[name], found[REFERENCE]),
            "throughput_ratio_to_limit": 1 / ratio(found[name], found[LOOP]),
            "repeats": len(found[name]),
        }
        for name in contenders
        for low, middle, high in [spread(found[name].values())]
    ]


def main() -> None:
    options = parse_options(__doc__)
    rows: list[Row] = []
    for workers in (0, 2):
        for sample_us in (10, 30, 100, 300, 1000):
            rows += compare(sample_us, workers, options)
    report("per_sample", rows, options, lambda figure: draw(figure, rows))


def draw(figure: Any, rows: list[Row]) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    for axes, workers in zip(panels, (0, 2), strict=True):
        for name, colour in ((REFERENCE, TORCH), (LOADER, OURS)):
            line = [row for row in rows if row["contender"] == name and row["workers"] == workers]
            costs = [row["sample_us"] for row in line]
            values = [row["throughput_ratio_to_reference"] for row in line]
            axes.plot(costs, values, "o-", color=colour, label=name)
            if name == LOADER:
                for cost, value in zip(costs, values, strict=True):
                    axes.annotate(f"{value:.2f}", (cost, value), (0, -15), textcoords="offset points", ha="center")
        axes.axhline(0.93, color="#24292f", linewidth=0.8, linestyle=":", label="target at 100 us: 0.93")
        axes.set_xscale("log")
        axes.set_xlabel("cost of a sample (us, log scale)")
        axes.set_title(f"{workers} workers", loc="left")
        axes.set_ylim(0, 1.15 * max(row["throughput_ratio_to_reference"] for row in rows if row["contender"] != LOOP))
    panels[0].set_ylabel("throughput over DataLoader's\n(more is better)")
    panels[0].legend(loc="lower right", frameon=False)
    figure.suptitle(f"torch, numpy and random seeded for each sample, batches of {BATCH}", x=0.01, ha="left")


if __name__ == "__main__":
    main()
