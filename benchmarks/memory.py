"""Measure how much four workers grow over a full pass through a million records.

A record is a dict of a text, a tag and three numbers. Each contender runs in its own fork, which makes the records and the
loader. Workers are forked (or four threads). The pass is shuffled, in batches of 1,024. `growth` is the sum of the workers' unique
set sizes at the end of the pass, less that after the first batch. `total_growth` is the same for the proportional
set sizes of all processes, shared memory included. `later_total_growth` begins at a twentieth of the pass, when each worker has made
a batch. `whole` is the size at the end over that before the records were made. `records` is the size of the list. Medians of five runs.
"""

import gc
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from lib.apart import once
from lib.harness import LeftOutError, Row, parse_options, record, tell
from report.declare import LOADER, Report, cell, each, percent
from torch import Tensor
from torch.utils.data import DataLoader

import loaderkit as lk

BATCH, WORKERS = 1024, 4
Record = dict[str, Any]
LISTED = "a list of dicts"

REPORT = Report(minutes=5)
for name in ("lk.RecordDataset", "lk.share"):
    REPORT.target(
        f"A million records, `{name}`: growth of four workers over the records' size, and of all processes",
        percent(each("growth_over_records", "total_growth_over_records", contender=f"{LOADER}, {name}")),
        most=10,
        unit=" %",
    )
REPORT.line(
    "A million records, 4 workers, one pass: growth of the workers over the records' size",
    cell("{:.1%} (lk.share)", each("growth_over_records", contender=f"{LOADER}, lk.share")),
    cell(
        "a list of dicts {:.0%} ({} MB)",
        each("growth_over_records", "growth_mb", contender="DataLoader, a list of dicts"),
    ),
)
for column, text, how in (
    ("total_growth_mb", "growth of four workers, 10^6 records", "lk.RecordDataset"),
    ("total_growth_mb", "growth of four workers, 10^6 records, lk.share", "lk.share"),
    ("later_total_growth_mb", "growth of four workers that all have made a batch, 10^6 records", "lk.RecordDataset"),
    ("total_growth_mb", "growth of four threads, 10^6 records", "lk.RecordDataset, threads"),
    ("whole_mb", "memory of 10^6 records and four workers", "lk.RecordDataset"),
):
    others = {"DataLoader": "DataLoader, a list of dicts", "Hugging Face datasets": "DataLoader, Hugging Face datasets"}
    REPORT.speed(text, column, {}, f"{LOADER}, {how}", others, timed=False)
REPORT.chart(
    "1,000,000 records, one pass: growth of four workers over the records' own size (less is better; target 0.1)",
    "growth_over_records",
    log=True,
    mark=0.1,
)


def make_records(count: int) -> list[Record]:
    return [
        {
            "text": f"record {number} says " + "word " * (number % 20),
            "tag": f"tag {number * 7919 % 1000}",
            "id": number,
            "score": number / 7,
            "label": number % 10,
        }
        for number in range(count)
    ]


class Ids:
    draws_nothing = True

    def __call__(self, samples: list[Record]) -> Tensor:
        return torch.tensor([sample["id"] for sample in samples])


class Records:
    """A dataset over records, as one writes it."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        return self._records[index]


def as_they_are(count: int) -> Any:
    return Records(make_records(count))


def packed(count: int) -> Any:
    return lk.RecordDataset(make_records(count))


def shared(count: int) -> Any:
    return Records(lk.share(make_records(count)))


def in_arrow(count: int) -> Any:
    import datasets

    return datasets.Dataset.from_list(make_records(count))


CONTENDERS: dict[str, tuple[Callable[[int], Any], str]] = {  # the data, and the engine where the loader is ours
    f"DataLoader, {LISTED}": (as_they_are, ""),
    f"{LOADER}, {LISTED}": (as_they_are, "auto"),
    f"{LOADER}, lk.RecordDataset": (packed, "auto"),
    f"{LOADER}, lk.RecordDataset, threads": (packed, "threads"),
    f"{LOADER}, lk.share": (shared, "auto"),
    "DataLoader, lk.RecordDataset": (packed, ""),
    "DataLoader, lk.share": (shared, ""),
    "DataLoader, Hugging Face datasets": (in_arrow, ""),
}


def measure(make: Callable[[int], Any], engine: str, count: int) -> dict[str, float]:
    """Run a pass in this process, which has nothing else."""
    before = memory_of(os.getpid(), "Pss")
    data = make(count)
    gc.collect()
    held = memory_of(os.getpid(), "Pss") - before
    gc.freeze()  # or a collection in a worker would write to all objects
    settings: dict[str, Any] = {"collate_fn": Ids(), "num_workers": WORKERS, "shuffle": True}
    loader: Any = lk.Loader(data, BATCH, engine=engine, **settings) if engine else DataLoader(data, BATCH, **settings)  # type: ignore[arg-type]
    batches = iter(loader)
    seen = len(next(batches))
    workers = children()
    unique = sum(memory_of(worker, "Private") for worker in workers)
    total = sum(memory_of(process, "Pss") for process in (os.getpid(), *workers))
    most, most_total = unique, total
    left = -(-count // BATCH) - 1
    later = total
    for number, batch in enumerate(batches, 1):
        seen += len(batch)
        if number == left // 20:  # each worker has made a batch
            later = sum(memory_of(process, "Pss") for process in (os.getpid(), *workers))
        if number in (left // 2, left - 1):  # the workers end after the last one
            most = max(most, sum(memory_of(worker, "Private") for worker in workers))
            most_total = max(most_total, sum(memory_of(process, "Pss") for process in (os.getpid(), *workers)))
    if seen != count:
        raise RuntimeError(f"memory: {seen:,} records came, wanted {count:,}.")
    return {
        "held": held,
        "growth": most - unique,
        "total": most_total - total,
        "later": most_total - later,
        "whole": most_total - before,
    }


def memory_of(process: int, kind: str) -> float:
    """Return the megabytes of all lines of smaps_rollup that begin so."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    wanted = (f"{kind}_Clean:", f"{kind}_Dirty:") if kind == "Private" else (f"{kind}:",)
    return sum(int(line.split()[1]) for line in lines if line.startswith(wanted)) / 1024


def children() -> list[int]:
    return [int(one) for one in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]


def main() -> None:
    options = parse_options(__doc__)
    count, repeats = (20 * BATCH, 1) if options.quick else (1_000_000, 5)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for name in [*CONTENDERS] * repeats:
        begun = time.monotonic()
        make, engine = CONTENDERS[name]
        try:
            found[name].append(once(partial(measure, make, engine, count), limit_s=120))
        except LeftOutError as error:
            tell(f"{name}: left out: {error}.")
            continue
        tell(f"{name}: {time.monotonic() - begun:.0f} s")
    middle = {
        name: {what: median(values[what] for values in runs) for what in runs[0]}
        for name, runs in found.items()
        if runs
    }
    lists = [values["held"] for name, values in middle.items() if name.endswith(LISTED)]
    records = lists[0] if lists else float("nan")
    rows: list[Row] = [
        {
            "contender": name,
            "records": count,
            "records_mb": records,
            "held_mb": values["held"],
            "growth_mb": values["growth"],
            "total_growth_mb": values["total"],
            "later_total_growth_mb": values["later"],
            "whole_mb": values["whole"],
            "growth_over_records": values["growth"] / records,
            "total_growth_over_records": values["total"] / records,
            "repeats": len(found[name]),
        }
        for name, values in middle.items()
    ]
    record("memory", rows, options)


if __name__ == "__main__":
    main()
