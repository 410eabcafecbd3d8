"""Measure what seeding every sample costs, compared with a DataLoader that seeds none.

A sample is a numpy computation of 10 to 1,000 us, in batches of 32, shuffled, with 0 and 2 workers. At 100 us the other peers take
part. The samples draw nothing; lk.Loader seeds them unless the dataset declares `draws_nothing`. "Seeded by hand" is a
DataLoader whose dataset seeds torch, numpy and `random` itself. The reference is a DataLoader with as many workers. The limit is a
loop over the dataset without loader or collate (half of it with 2 workers).
"""

import copy
import random
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from contenders import BARE, LOADER, REFERENCE, Job, by_torch, colour_of, compare, ours
from harness import Row, drain, parse_options, report
from torch import Tensor
from torch.utils.data import DataLoader

BATCH = 32
UNSEEDED = f"{LOADER}, draws_nothing"
BY_HAND = f"{REFERENCE}, seeded by hand"
LINES = {REFERENCE: "o-", BY_HAND: "o--", LOADER: "o-", UNSEEDED: "o--"}
TARGET_US = 100


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
                    BY_HAND: partial(by_torch, by_hand, workers, DataLoader),
                },
                alone=not at_target,
            )
    report("per_sample", rows, options, lambda figure: draw(figure, rows), height=7)


def run(data: Computed) -> None:
    drain(data[index] for index in range(len(data)))


def draw(figure: Any, rows: list[Row]) -> None:
    lines, bars = figure.subplots(2, 2, height_ratios=(3, 4))
    column = "throughput_ratio_to_reference"
    for axes, workers in zip(lines, (0, 2), strict=True):
        for name, style in LINES.items():
            line = [row for row in rows if row["contender"] == name and row["workers"] == workers]
            costs, values = [row["sample_us"] for row in line], [row[column] for row in line]
            axes.plot(costs, values, style, color=colour_of(name), label=name)
            if name == LOADER:
                for cost, value in zip(costs, values, strict=True):
                    axes.annotate(
                        f"{value:.2f}",
                        (cost, value),
                        (0, -14),
                        textcoords="offset points",
                        ha="center",
                        fontsize=8,
                    )
        axes.axhline(0.93, color="#24292f", linewidth=0.8, linestyle=":", label="target at 100 us: 0.93")
        axes.set_xscale("log")
        axes.set_xlabel("cost of a sample (us, log scale)")
        axes.set_title(f"{workers} workers", loc="left")
        mine = [row for row in rows if row["workers"] == workers and row["contender"] in LINES]
        axes.set_ylim(0, 1.3 * max(row[column] for row in mine))
    lines[0].set_ylabel("throughput over DataLoader's\n(more is better)")
    lines[1].legend(loc="upper right", frameon=False)
    names = list(dict.fromkeys(row["contender"] for row in rows if row["contender"] != BARE))
    for axes, workers in zip(bars, (0, 2), strict=True):
        mine = [row for row in rows if row["workers"] == workers and row["sample_us"] == TARGET_US]
        mine = [row for row in mine if row["contender"] != BARE]
        found = axes.barh(
            [names.index(row["contender"]) for row in mine],
            [row[column] for row in mine],
            color=[colour_of(row["contender"]) for row in mine],
        )
        axes.bar_label(found, [f" {row[column]:.2f}" for row in mine], fontsize=8)
        axes.set_xlim(0, 1.2 * max(row[column] for row in mine))
        axes.set_title(f"{TARGET_US} us a sample, {workers} workers", loc="left")
        axes.set_yticks(range(len(names)), names if axes is bars[0] else [])
        axes.set_ylim(len(names) - 0.5, -0.5)
    bars[0].set_xlabel("throughput over DataLoader's (more is better)")
    figure.suptitle(
        f"Samples that cost something, batches of {BATCH}: torch, numpy and random seeded for each, or not",
        x=0.01,
        ha="left",
    )


if __name__ == "__main__":
    main()
