"""Measure stragglers: one sample in twenty takes ten times as long, and batches still come in order.

A sample takes 1 ms, a straggler 10 ms, drawn once. Two workers, batches of 1 and of 8, in order. "Computing" uses the CPU, "waiting"
sleeps, like a read from a service. Perfect balance is the least that two workers need: two bare processes that share the batches
evenly, in the same round. Threads cannot seed the global generators, and no peer does; lk.Loader is measured with seeding and, by
`draws_nothing`, without, with processes and with threads.
"""

import copy
import dataclasses
import os
import time
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from apart import Make, interleave_apart
from contenders import LOADER, RING, Job, by_torch, colour_of, others, ours
from harness import OVER_LINES, Options, Row, drain, parse_options, ratio, report, spread
from torch import Tensor
from torch.utils.data import DataLoader

WORKERS, SAMPLE_S, SHARE, SLOWER = 2, 1e-3, 20, 10
BALANCE, THEIRS, UNSEEDED = "perfect balance (the limit)", f"{LOADER}, torch", f"{LOADER}, draws_nothing"
THREADS = f"{LOADER}, threads, draws_nothing"
REFERENCE, MORE_AHEAD = "DataLoader", "DataLoader, prefetch_factor=8"


class Uneven:
    """Samples that take their time: one in twenty ten times as much."""

    draws_nothing = False

    def __init__(self, size: int, waiting: bool) -> None:
        draw = np.random.default_rng(0)
        slow = draw.permutation(size) < size // SHARE
        self.costs = np.where(slow, SLOWER, 1).tolist()  # in times of a plain sample
        self._waiting, self._data = waiting, draw.random(4096)
        self._turns = 1 if waiting else max(1, round(SAMPLE_S / self._turn_s()))

    def __len__(self) -> int:
        return len(self.costs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._waiting:
            time.sleep(SAMPLE_S * self.costs[index])
        else:
            self._compute(self._turns * self.costs[index])
        return torch.full((32,), float(index)), index

    def _compute(self, turns: int) -> None:
        for _ in range(turns):
            np.sin(self._data).sum()

    def _turn_s(self) -> float:
        """CPU time of a turn, by the fastest of some tries."""
        found = []
        for _ in range(20):
            start = time.thread_time()
            self._compute(20)
            found.append((time.thread_time() - start) / 20)
        return min(found)


class TwoProcesses:
    """Two bare processes that each do their half of the work when they are told to."""

    def __init__(self, data: Uneven, batch_size: int, stack: ExitStack) -> None:
        starts = sorted(range(0, len(data), batch_size), key=lambda at: -sum(data.costs[at : at + batch_size]))
        halves: list[list[int]] = [[] for _ in range(WORKERS)]
        for start in starts:  # the longest first, to whoever has the least
            mine = min(halves, key=lambda half: sum(data.costs[index] for index in half))
            mine += range(start, start + batch_size)
        self._orders = [os.pipe() for _ in halves]
        self._answers = [os.pipe() for _ in halves]
        for half, (order, _), (_, answer) in zip(halves, self._orders, self._answers, strict=True):
            process = get_context("fork").Process(target=work, args=(data, half, order, answer), daemon=True)
            process.start()
            stack.callback(process.terminate)

    def __call__(self) -> None:
        for _, order in self._orders:
            os.write(order, b"1")
        for answer, _ in self._answers:
            os.read(answer, 1)


def work(data: Uneven, half: list[int], order: int, answer: int) -> None:
    torch.set_num_threads(1)
    while os.read(order, 1):
        drain(data[index] for index in half)
        os.write(answer, b"1")


def compare(waiting: bool, batch_size: int, options: Options) -> list[Row]:
    data = Uneven(160 if options.quick else 640, waiting)
    job = Job(dataset=data, batch_size=batch_size, shuffle=False)
    said = copy.copy(data)
    said.draws_nothing = True
    makes: dict[str, Make] = {
        BALANCE: partial(TwoProcesses, data, batch_size),
        LOADER: partial(ours, job, WORKERS, "auto"),
        RING: partial(ours, job, WORKERS, "ring"),
        UNSEEDED: partial(ours, dataclasses.replace(job, dataset=said), WORKERS, "auto"),
        THREADS: partial(ours, dataclasses.replace(job, dataset=said), WORKERS, "threads"),
        THEIRS: partial(ours, job, WORKERS, "torch"),
        REFERENCE: partial(by_torch, job, WORKERS, DataLoader),
        MORE_AHEAD: partial(by_torch, job, WORKERS, DataLoader, prefetch_factor=8),
    }
    rounds, limit_s = (2, 20) if options.quick else (9, 75)
    label = f"{'waiting' if waiting else 'computing'}, batches of {batch_size}"
    found = interleave_apart(makes | others(job, WORKERS), rounds=rounds, limit_s=limit_s, label=label)
    return [
        {
            "work": "waiting" if waiting else "computing",
            "batch_size": batch_size,
            "contender": name,
            "epoch_ms": middle * 1e3,
            "epoch_ms_q1": low * 1e3,
            "epoch_ms_q3": high * 1e3,
            "over_perfect_balance": ratio(taken, found[BALANCE]),
            "repeats": len(taken),
        }
        for name, taken in found.items()
        for low, middle, high in [spread(taken.values())]
    ]


def main() -> None:
    options = parse_options(__doc__)
    rows: list[Row] = []
    for waiting in (False, True):
        for batch_size in (1, 8):
            rows += compare(waiting, batch_size, options)
    report("stragglers", rows, options, partial(draw, rows=rows), height=7)


def draw(figure: Any, rows: list[Row]) -> None:
    panels = figure.subplots(2, 2, sharey=True, sharex=True)
    names = [name for name in dict.fromkeys(row["contender"] for row in rows) if name != BALANCE]
    for line, kind in zip(panels, ("computing", "waiting"), strict=True):
        for axes, batch_size in zip(line, (1, 8), strict=True):
            mine = [row for row in rows if (row["work"], row["batch_size"]) == (kind, batch_size)]
            mine = [row for row in mine if row["contender"] != BALANCE]
            places = [names.index(row["contender"]) for row in mine]
            values = [row["over_perfect_balance"] for row in mine]
            bars = axes.barh(places, values, color=[colour_of(row["contender"]) for row in mine])
            axes.bar_label(bars, [f" {value:.2f}" for value in values], fontsize=8, bbox=OVER_LINES)
            axes.axvline(1.15, color="#24292f", linewidth=0.8, linestyle=":", zorder=0)
            axes.set_title(f"{kind}, batches of {batch_size}", loc="left")
    for axes in panels[:, 0]:
        axes.set_yticks(range(len(names)), names, fontsize=8)
    panels[0, 0].invert_yaxis()
    panels[0, 0].set_xlim(0, 1.15 * max(row["over_perfect_balance"] for row in rows))
    for axes in panels[1]:
        axes.set_xlabel("time over perfect balance (target: 1.15)")


if __name__ == "__main__":
    main()
