"""Measure how exact DataWaitMonitor's share is, and what it costs a step.

The monitor watches plain sleeps, or `lk.Loader` over samples that sleep. The reference times the sleeps or the
Loader's calls itself, so that both see what a busy machine adds. The cost is CPU time over the same loop
without the monitor.
"""

import time
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import lightning.pytorch as pl
import torch
from lib.harness import Row, drain, parse_options, record
from report.declare import LOADER, Report, best, cell, each, every

import loaderkit as lk

STEP_MS = 5.0
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)

REPORT = Report(minutes=1)
for loop in ("plain loop", "Lightning"):
    REPORT.target(
        f"`DataWaitMonitor`, {loop}: off the share of synthetic sleeps, alone and in `{LOADER}`'s samples, the worst",
        best(max, *(every("points_off", loop=loop, watched=watched) for watched in ("sleeps", LOADER))),
        most=5,
        unit=" points",
    )
    REPORT.target(
        f"`DataWaitMonitor`, {loop}: its cost of a step of 5 ms",
        each("cost_percent_of_5_ms", loop=loop, watched="sleeps"),
        most=1,
        unit=" %",
    )
    REPORT.line(
        f"`DataWaitMonitor`, {loop}: off the share of synthetic sleeps, at worst (its cost a step)",
        cell("{:.1f} points ({} us)", best(max, every("points_off", loop=loop)), each("cost_us_per_step", loop=loop)),
    )
REPORT.chart(
    "DataWaitMonitor: its share of a 5 ms step that waits for data, over that by a clock of the source's own",
    "measured",
    names=("loop", "watched"),
    x="share",
)


class Sleeps:
    """Batches that sleep, and take the time of that."""

    def __init__(self, steps: int, seconds: float) -> None:
        self.steps, self.seconds, self.taken = steps, seconds, 0.0

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.steps):
            self.taken += slept(self.seconds)
            yield torch.ones(1, 4)


class Samples:
    """Samples that sleep."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds = size, seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        slept(self.seconds)
        return torch.ones(4)


class Clocked(lk.Loader):
    """A Loader over such samples that takes the time of its calls."""

    def __init__(self, steps: int, seconds: float) -> None:
        super().__init__(Samples(steps, seconds))
        self.taken = 0.0

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self.taken += time.perf_counter() - start
            if batch is None:
                return
            yield batch


class Step(pl.LightningModule):
    """A step that sleeps; it takes the time of its epoch."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
        self.seconds, self.epoch_s = seconds, 0.0

    def on_train_epoch_start(self) -> None:
        self.epoch_s -= time.perf_counter()

    def on_train_epoch_end(self) -> None:
        self.epoch_s += time.perf_counter()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        slept(self.seconds)
        loss: torch.Tensor = self.net(batch).sum()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


SOURCES: dict[str, type[Sleeps | Clocked]] = {"sleeps": Sleeps, "lk.Loader": Clocked}


def slept(seconds: float) -> float:
    start = time.perf_counter()
    if seconds:
        time.sleep(seconds)
    return time.perf_counter() - start


def plain(source: type[Sleeps | Clocked], steps: int, share: float) -> tuple[float, float]:
    """Return the share as measured, and as it was."""
    batches = source(steps, share * STEP_MS / 1e3)
    with lk.DataWaitMonitor(warmup=0, warn_above=None) as monitor:
        begun = time.perf_counter()
        for _ in monitor.watch(batches):
            slept((1 - share) * STEP_MS / 1e3)
        whole = time.perf_counter() - begun
    return monitor.summary().share, batches.taken / whole


def under_lightning(source: type[Sleeps | Clocked], steps: int, share: float) -> tuple[float, float]:
    """Return the share as measured, and as it was."""
    batches, model = source(steps, share * STEP_MS / 1e3), Step((1 - share) * STEP_MS / 1e3)
    callback = lk.DataWaitCallback(warmup=0, warn_above=None)
    trainer(callback).fit(model, batches)
    return callback.monitor.summary().share, batches.taken / model.epoch_s


def trainer(*callbacks: pl.Callback) -> pl.Trainer:
    off: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False
    )
    return pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=list(callbacks), **off)


def plain_cost_us(steps: int) -> float:
    monitor = lk.DataWaitMonitor(warn_above=None)
    costs = []
    for _ in range(5):
        start = time.process_time()
        drain(range(steps))
        middle = time.process_time()
        drain(monitor.watch(range(steps)))
        costs.append(time.process_time() - middle - (middle - start))
    return min(costs) / steps * 1e6


class Timed(lk.DataWaitCallback):
    """Takes the time of its own hooks."""

    taken = 0.0

    def on_train_batch_start(self, *given: Any) -> None:
        start = time.thread_time()
        super().on_train_batch_start(*given)
        self.taken += time.thread_time() - start

    def on_train_batch_end(self, *given: Any) -> None:
        start = time.thread_time()
        super().on_train_batch_end(*given)
        self.taken += time.thread_time() - start


def lightning_cost_us(steps: int) -> float:
    costs = []
    for _ in range(5):
        callback = Timed(warmup=0, warn_above=None)
        trainer(callback).fit(Step(0), lk.DataModule(lk.ArrayDataset(torch.ones(steps, 4))))
        costs.append(callback.taken / steps * 1e6)
    return min(costs) + plain_cost_us(steps)  # and the two hooks around each fetch


def main() -> None:
    options = parse_options(__doc__)
    warnings.simplefilter("ignore")
    steps = 60 if options.quick else 400
    rows: list[Row] = []
    for name, measure, cost_us in (
        ("plain loop", plain, plain_cost_us(steps)),
        ("Lightning", under_lightning, lightning_cost_us(steps)),
    ):
        for (watched, source), share in product(SOURCES.items(), SHARES):
            found, wanted = measure(source, steps, share)
            rows.append(
                {
                    "loop": name,
                    "watched": watched,
                    "share": wanted,
                    "measured": found,
                    "points_off": 100 * abs(found - wanted),
                    "cost_us_per_step": cost_us,
                    "cost_percent_of_5_ms": cost_us / (10 * STEP_MS),
                    "steps": steps,
                }
            )
    record("data_wait", rows, options)


if __name__ == "__main__":
    main()
