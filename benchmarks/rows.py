"""Measure rows of an array in memory: what a loader costs over the gather that every loader must do.

1,000,000 x 32 float32, batches of 1,024, shuffled; one epoch of each contender. The reference is the loop as written by
hand. The limit is its gather alone.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from apart import Make, interleave_apart
from contenders import Epoch, Job, colour_of, others
from harness import LIMIT, OVER_LINES, Row, drain, parse_options, ratio, report, spread
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import loaderkit as lk

BATCH = 1024
ALONE = "gather alone, indices ready (the limit)"
LOOP = "loop over randperm + index_select (the reference)"


class Gather:
    """Reads a batch from its indices."""

    def __init__(self, data: Tensor) -> None:
        self._data = data

    def __call__(self, indices: Any) -> Tensor:
        return self._data.index_select(0, torch.as_tensor(indices))


def hand_written(data: Tensor) -> Iterator[Tensor]:
    for indices in torch.split(torch.randperm(len(data)), BATCH):
        yield data.index_select(0, indices)


def epochs(make: Callable[[], Any], stack: ExitStack) -> Epoch:  # noqa: ARG001
    """Make a loader, and return what runs an epoch of it."""
    return partial(drain, make())


def main() -> None:
    options = parse_options(__doc__)
    size = (100 if options.quick else 977) * BATCH
    data = torch.randn(size, 32)
    ready = torch.split(torch.randperm(size), BATCH)
    array, tensors = lk.ArrayDataset(data), TensorDataset(data)
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    at_once: dict[str, Any] = {"batch_size": None, "sampler": BatchSampler(RandomSampler(tensors), BATCH, False)}
    loaders: dict[str, Callable[[], Any]] = {
        "lk.Loader(ArrayDataset)": lambda: lk.Loader(array, BATCH, shuffle=True),
        "lk.Loader(ArrayDataset), 2 workers": lambda: lk.Loader(array, BATCH, shuffle=True, **workers),
        "lk.Loader(ArrayDataset), ring, 2 workers": lambda: lk.Loader(
            array, BATCH, shuffle=True, engine="ring", **workers
        ),
        "DataLoader(TensorDataset)": lambda: DataLoader(tensors, BATCH, shuffle=True),
        "DataLoader(TensorDataset), 2 workers": lambda: DataLoader(tensors, BATCH, shuffle=True, **workers),
        "DataLoader(TensorDataset), sampler of batches": lambda: DataLoader(tensors, **at_once),
        "DataLoader(TensorDataset), sampler of batches, 2 workers": lambda: DataLoader(tensors, **at_once, **workers),
        "StatefulDataLoader(TensorDataset)": lambda: StatefulDataLoader(tensors, BATCH, shuffle=True),
        "StatefulDataLoader(TensorDataset), 2 workers": lambda: StatefulDataLoader(
            tensors, BATCH, shuffle=True, **workers
        ),
    }
    job = Job(dataset=array, batch_size=BATCH, gather=Gather(data), most=100)
    makes: dict[str, Make] = {
        ALONE: lambda _: lambda: drain(data.index_select(0, indices) for indices in ready),
        LOOP: lambda _: lambda: drain(hand_written(data)),
    }
    makes |= {name: partial(epochs, make) for name, make in loaders.items()}
    makes |= others(job, 0) | {f"{name}, 2 workers": make for name, make in others(job, 2).items()}
    slow = {name: 10 for name in makes if not name.startswith("lk.")} | {ALONE: 1, LOOP: 1}
    found = interleave_apart(
        makes, rounds=3 if options.quick else 21, limit_s=150, seldom=slow, turn_s=90, label=f"{size:,} rows"
    )
    rows: list[Row] = []
    for name, taken in found.items():
        low, middle, high = spread(taken.values())
        rows.append(
            {
                "contender": name,
                "workers": 2 if name.endswith("2 workers") else 0,
                "epoch_ms": middle * 1e3,
                "epoch_ms_q1": low * 1e3,
                "epoch_ms_q3": high * 1e3,
                "us_per_batch": middle * 1e6 / len(ready),
                "ratio_to_reference": ratio(taken, found[LOOP]),
                "ratio_to_limit": ratio(taken, found[ALONE]),
                "repeats": len(taken),
            }
        )
    report("rows", rows, options, lambda figure: draw(figure, rows, size), height=6)


def draw(figure: Any, rows: list[Row], size: int) -> None:
    axes = figure.subplots()
    rows = sorted(rows, key=lambda row: row["workers"])
    names = [row["contender"] for row in rows]
    values = [row["ratio_to_reference"] for row in rows]
    bars = axes.barh(names, values, color=[LIMIT if name in (ALONE, LOOP) else colour_of(name) for name in names])
    axes.bar_label(bars, [f" {value:.2f} x" if value < 10 else f" {value:.0f} x" for value in values], bbox=OVER_LINES)
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, max(values) * 3)
    axes.axvline(1, color="#24292f", linewidth=0.8, linestyle=":", zorder=0)
    axes.invert_yaxis()
    axes.set_xlabel("time over the hand-written loop's (log scale; less is better)")
    figure.suptitle(f"{size:,} x 32 float32 in memory, batches of {BATCH:,}, shuffled", x=0.01, ha="left")


if __name__ == "__main__":
    main()
