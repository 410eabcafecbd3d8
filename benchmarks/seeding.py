"""Measure what seeds for each sample cost, on the JPEGs of `pictures.py` without workers.

Decoding, cropping and mirroring take nine tenths of the time and are the same code for all. The script compares the rest: loader,
collate, seeding, drawing. Ratios are one plus the mean difference over the other loader's whole time. Standard errors come from
the differences between programs, because all forks of one program have equal addresses.
*Not seeding* is lk.Loader told that the data draws nothing. *sample_rng* draws from `lk.sample_rng()` alone. *Seeded by hand* are
peers whose dataset seeds the three generators. *Philox by hand* is a peer whose dataset makes a generator for each sample.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import numpy as np
from lib.apart import Make, interleave_apart
from lib.contenders import NODES, REFERENCE, STATEFUL, Job, by_nodes, by_torch, import_peers, installed, ours
from lib.harness import Row, parse_options, record
from pictures import BATCH, BY_HAND, OWN, Augmented, ByHand, Own, make_jpegs
from report.declare import LOADER, Report, cell, each, over
from torch import Tensor
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

NOT_SEEDING = f"{LOADER}, not seeding"
OVER = {"time_over_dataloader": REFERENCE, "time_over_loader": LOADER, "time_over_nodes": NODES}
COUNT = 8 * BATCH
Turns = Mapping[int, "Beside"]

REPORT = Report(minutes=17)
REPORT.target(
    "The same JPEGs, 0 workers, where loaders differ: throughput over `DataLoader`, torchdata.nodes, both seeding by hand, and "
    "torchdata.nodes that makes a generator for each sample (by `lk.sample_rng()`)",
    over(
        each(
            "time_over_dataloader",
            contender=tuple(
                f"{name} by hand"
                for name in ("DataLoader, seeded", "torchdata.nodes, seeded", "torchdata.nodes, Philox")
            ),
        ),
        each("time_over_dataloader", contender=(LOADER, LOADER, f"{LOADER}, sample_rng")),
    ),
    least=0.98,
)
REPORT.line(
    "JPEGs decoded and augmented, 0 workers: time over that of `DataLoader`, which seeds nothing, where they differ",
    cell(
        "{:.3f}; by `lk.sample_rng()` {:.3f}; told that the data draws nothing {:.3f}",
        each(
            "time_over_dataloader", contender=tuple(f"{LOADER}{end}" for end in ("", ", sample_rng", ", not seeding"))
        ),
    ),
    cell(
        "seeded by hand {:.3f}, torchdata.nodes {:.3f}, seeded by hand {:.3f}, with a generator for each sample {:.3f}",
        each("time_over_dataloader", contender="DataLoader, seeded by hand"),
        each(
            "time_over_dataloader",
            contender=tuple(f"torchdata.nodes{end}" for end in ("", ", seeded by hand", ", Philox by hand")),
        ),
    ),
)
REPORT.chart(
    "JPEGs decoded and augmented without workers: time over DataLoader's, where they differ (less is better)",
    "time_over_dataloader",
    mark=1,
)


class Counted(Augmented):
    """Counts the seconds that decoding, cutting and mirroring take."""

    spent = 0.0

    def _cut(self, index: int, top: int, left: int, mirrored: bool) -> tuple[Tensor, int]:
        start = time.perf_counter()
        sample = super()._cut(index, top, left, mirrored)
        self.spent += time.perf_counter() - start
        return sample


class CountedByHand(ByHand, Counted):
    """Seeds for each sample, before that."""


class CountedOwn(Own, Counted):
    """Draws from the sample's own generator, before that."""


class SaidToDrawNothing(Counted):
    draws_nothing = True


class PhiloxByHand(Counted):
    """Draws from a generator made for the sample."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._draw(index, np.random.Generator(np.random.Philox(key=index)))


class Beside(float):
    """The seconds of an epoch that are not the dataset's; `whole` are all."""

    whole: float


def main() -> None:
    options = parse_options(__doc__)
    samples, programs = (BATCH, 2) if options.quick else (COUNT, 12)
    makes = make_contenders(samples)
    # Rounds of a program: each loader follows each other one equally often.
    each = 1 if options.quick else 2 * len(makes)
    taken = interleave_apart(
        makes,
        rounds=each * programs,
        programs=programs,
        limit_s=75 * programs,
        fresh=True,
        prepare=import_peers,
        label="seeding",
    )
    found = cast("dict[str, Turns]", taken)
    rows: list[Row] = []
    for name, turns in found.items():
        row: Row = {
            "contender": name,
            "us_per_sample": statistics.median(turn.whole for turn in turns.values()) / samples * 1e6,
            "us_beside_decoding": statistics.fmean(turns.values()) / samples * 1e6,
        }
        for column, other in OVER.items():
            if other in found:
                row[column], row[f"{column}_standard_error"] = mean_ratio(turns, found[other], each)
                row[f"whole_{column}"], row[f"whole_{column}_standard_error"] = mean_whole_ratio(
                    turns, found[other], each
                )
        rows.append(row | {"rounds": len(turns), "programs": programs})
    record("seeding", rows, options)


def make_contenders(samples: int) -> dict[str, Make]:
    files = make_jpegs(samples)
    plain, by_hand, quiet, own, philox = (
        Job(dataset=kind(files), batch_size=BATCH)
        for kind in (Counted, CountedByHand, SaidToDrawNothing, CountedOwn, PhiloxByHand)
    )
    makes: dict[str, Make] = {
        LOADER: partial(counted, ours, plain, "auto"),
        NOT_SEEDING: partial(counted, ours, quiet, "auto"),
        OWN: partial(counted, ours, own, "auto"),
        REFERENCE: partial(counted, by_torch, plain, DataLoader),
        STATEFUL: partial(counted, by_torch, plain, StatefulDataLoader),
        f"{REFERENCE}{BY_HAND}": partial(counted, by_torch, by_hand, DataLoader),
    }
    if installed(NODES):
        makes |= {
            f"{NODES}{end}": partial(counted, by_nodes, job, "thread")
            for end, job in (("", plain), (BY_HAND, by_hand), (", Philox by hand", philox))
        }
    return makes


def counted(
    contender: Callable[..., Callable[[], object]], job: Job, kind: Any, stack: ExitStack
) -> Callable[[], Beside]:
    """Make a contender whose epochs return `Beside`."""
    run = contender(job, 0, kind, stack)

    def epoch() -> Beside:
        job.dataset.spent, start = 0.0, time.perf_counter()
        run()
        whole = time.perf_counter() - start
        beside = Beside(whole - job.dataset.spent)
        beside.whole = whole
        return beside

    return epoch


def mean_ratio(turns: Turns, others: Turns, each: int) -> tuple[float, float]:
    """Return 1 plus the mean difference over the other's mean whole time, and the standard error over programs."""
    whole = statistics.fmean(turn.whole for turn in others.values())
    mean, error = mean_by_programs({number: turns[number] - others[number] for number in turns}, each)
    return 1 + mean / whole, error / whole


def mean_whole_ratio(turns: Turns, others: Turns, each: int) -> tuple[float, float]:
    """Return the geometric mean of the ratios of whole times, and its standard error over programs."""
    logs = {number: math.log(turns[number].whole / others[number].whole) for number in turns}
    mean, error = mean_by_programs(logs, each)
    return math.exp(mean), math.exp(mean) * error


def mean_by_programs(values: Mapping[int, float], each: int) -> tuple[float, float]:
    by_program: dict[int, list[float]] = {}
    for number, value in values.items():
        by_program.setdefault(number // each, []).append(value)
    means = [statistics.fmean(some) for some in by_program.values()]
    return statistics.fmean(means), statistics.stdev(means) / math.sqrt(len(means))


if __name__ == "__main__":
    main()
