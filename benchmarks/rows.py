"""Measure rows of an array in memory: what a loader costs over the gather that every loader must do.

1,000,000 x 32 float32, batches of 1,024, shuffled; one epoch of each contender. The reference is the loop as written by
hand. The limit is its gather alone.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from lib.apart import Make, interleave_apart
from lib.contenders import Epoch, Job, others
from lib.harness import Row, drain, parse_options, quartiles, ratio, record, spread
from report.declare import ROWS, Report, cell, each, over
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import loaderkit as lk

BATCH = 1024
ALONE = "gather alone, indices ready (the limit)"
LOOP = "loop over randperm + index_select (the reference)"

REPORT = Report(minutes=3)
REPORT.target(
    "Rows in memory, `auto`, 0 and 2 workers: over the bare gather",
    each("ratio_to_limit", contender=(ROWS, f"{ROWS}, 2 workers")),
    most=1.3,
)
REPORT.target(
    "Rows in memory, `auto`, 0 and 2 workers: over the loop written by hand (`torch.randperm` and `index_select`)",
    each("ratio_to_reference", contender=(ROWS, f"{ROWS}, 2 workers")),
    most=1.3,
)
REPORT.target(
    "Rows in memory, 2 workers: `DataLoader` over ours",
    over(
        each("epoch_ms", contender="DataLoader(TensorDataset), 2 workers"),
        each("epoch_ms", contender=f"{ROWS}, 2 workers"),
    ),
    least=20,
)
for end, text, theirs in (
    (
        "",
        "1M x 32 float32 in memory, batch 1,024, shuffled: time over a hand-written `index_select` loop (over its gather alone)",
        "`TensorDataset` + `DataLoader` {} x ({} x), {:.0f} times as long as ours",
    ),
    (", 2 workers", "The same with 2 workers", "`DataLoader` {0} x, {2:.0f} times as long as ours"),
):
    REPORT.line(
        text,
        cell("{} x ({} x)", each("ratio_to_reference", "ratio_to_limit", contender=f"{ROWS}{end}")),
        cell(
            theirs,
            each("ratio_to_reference", "ratio_to_limit", contender=f"DataLoader(TensorDataset){end}"),
            over(
                *(each("ratio_to_reference", contender=f"{name}{end}") for name in ("DataLoader(TensorDataset)", ROWS))
            ),
        ),
    )
    REPORT.speed(
        f"rows in memory, {'2' if end else '0'} workers", "epoch_ms", {"workers": "2" if end else "0"}, f"{ROWS}{end}"
    )
REPORT.chart(
    "1,000,448 x 32 float32 in memory, shuffled: time over the hand-written loop's (less is better)",
    "ratio_to_reference",
    panels=("workers",),
    log=True,
    mark=1,
)


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
        middle = spread(taken.values())[1]
        rows.append(
            {
                "contender": name,
                "workers": 2 if name.endswith("2 workers") else 0,
                **quartiles("epoch_ms", taken.values(), 1e3),
                "us_per_batch": middle * 1e6 / len(ready),
                "ratio_to_reference": ratio(taken, found[LOOP]),
                "ratio_to_limit": ratio(taken, found[ALONE]),
                "repeats": len(taken),
            }
        )
    record("rows", rows, options)


if __name__ == "__main__":
    main()
