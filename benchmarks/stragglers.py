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

import numpy as np
import torch
from lib.apart import Make, interleave_apart
from lib.contenders import RING, Job, by_torch, others, ours
from lib.harness import Options, Row, drain, parse_options, quartiles, ratio, record
from report.declare import LOADER, Report, cell, each
from torch import Tensor
from torch.utils.data import DataLoader

WORKERS, SAMPLE_S, SHARE, SLOWER = 2, 1e-3, 20, 10
BALANCE, THEIRS, UNSEEDED = "perfect balance (the limit)", f"{LOADER}, torch", f"{LOADER}, draws_nothing"
THREADS = f"{LOADER}, threads, draws_nothing"
REFERENCE, MORE_AHEAD = "DataLoader", "DataLoader, prefetch_factor=8"

REPORT = Report(minutes=6)
for name in (LOADER, f"{LOADER}, ring"):
    REPORT.target(
        f"Stragglers, `{name}`: over perfect balance; computing, batches of 1 and 8, then waiting",
        each("over_perfect_balance", contender=name, work=("computing", "waiting"), batch_size=("1", "8")),
        most=1.15,
    )
REPORT.target(
    "Stragglers that draw nothing, waiting, by threads: over perfect balance; batches of 1 and 8",
    each("over_perfect_balance", contender=f"{LOADER}, threads, draws_nothing", work="waiting", batch_size=("1", "8")),
    most=1.15,
)
for kind_of, kind, name, theirs in (
    ("computing", "", LOADER, "DataLoader"),
    ("waiting", "", LOADER, "DataLoader"),
    ("waiting", " that draw nothing", f"{LOADER}, threads, draws_nothing", "torchdata.nodes, threads"),
):
    REPORT.line(
        "The same, waiting, where the dataset says that it draws nothing, by 2 threads"
        if kind
        else f"Stragglers, {kind_of}: 1 of 20 samples 10 times slower, 2 workers, order kept: time over perfect balance, batches of 1 and of 8",
        *(
            cell(text, each("over_perfect_balance", contender=name, work=kind_of, batch_size=("1", "8")))
            for text, name in (("{} x, {} x", name), (f"`{theirs.partition(',')[0]}` {{}} x, {{}} x", theirs))
        ),
    )
    for size in ("1", "8"):
        where = {"work": kind_of, "batch_size": size}
        REPORT.speed(f"stragglers{kind}, {kind_of}, batches of {size}", "epoch_ms", where, name)
REPORT.chart(
    "1 of 20 samples is slow: time over perfect balance (target: 1.15; less is better)",
    "over_perfect_balance",
    panels=("work", "batch_size"),
    mark=1.15,
)


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
            **quartiles("epoch_ms", taken.values(), 1e3),
            "over_perfect_balance": ratio(taken, found[BALANCE]),
            "repeats": len(taken),
        }
        for name, taken in found.items()
    ]


def main() -> None:
    options = parse_options(__doc__)
    rows: list[Row] = []
    for waiting in (False, True):
        for batch_size in (1, 8):
            rows += compare(waiting, batch_size, options)
    record("stragglers", rows, options)


if __name__ == "__main__":
    main()
