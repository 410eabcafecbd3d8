"""What it costs that samples have seeds of their own, over the JPEGs of `pictures.py` without workers, where little else differs.

An epoch of `pictures.py` takes 5 % to 10 % more or less in each process, by where memory lies in its heap, and seeding takes 2 %.
Decoding, cutting and mirroring, nine tenths of it, is the same code for all. So what is compared here is the time beside it: of the loader,
the collate, seeding and drawing. Ratios are one and the mean difference of that, over the other loader's whole time; the standard errors come
from the differences between programs, as all forks of one have its addresses. The ratios of the whole times are beside them.
*Not seeding* is lk.Loader told that the data draws nothing, which is not so: all that is left is the loader itself. *sample_rng* draws from
`lk.sample_rng()` alone, and seeds none of the three generators. *Seeded by hand* are peers over a dataset that seeds the three for each
sample, *Philox by hand* one whose dataset makes a generator of the same kind for each and draws as *sample_rng* does.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from typing import Any, cast

import numpy as np
from apart import Make, interleave_apart
from contenders import (
    LOADER,
    NODES,
    REFERENCE,
    STATEFUL,
    Job,
    by_nodes,
    by_torch,
    colour_of,
    import_peers,
    installed,
    ours,
)
from harness import OVER_LINES, Row, parse_options, report
from pictures import BATCH, BY_HAND, OWN, Augmented, ByHand, Own, make_jpegs
from torch import Tensor
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

NOT_SEEDING = f"{LOADER}, not seeding"
OVER = {"time_over_dataloader": REFERENCE, "time_over_loader": LOADER, "time_over_nodes": NODES}
COUNT, PROGRAMS = 8 * BATCH, 12
Turns = Mapping[int, "Beside"]


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
    samples, times, programs = (BATCH, 1, 2) if options.quick else (COUNT, 2, PROGRAMS)
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        found = list(pool.map(measure, [samples] * programs, [times] * programs))
    names = [name for name in found[0] if all(name in one for one in found)]
    rows: list[Row] = []
    for name in names:
        taken = [one[name][number] for one in found for number in one[name]]
        row: Row = {
            "contender": name,
            "us_per_sample": statistics.median(each.whole for each in taken) / samples * 1e6,
            "us_beside_decoding": statistics.fmean(taken) / samples * 1e6,
        }
        for column, other in OVER.items():
            if other in names:
                pairs = [(one[name], one[other]) for one in found]
                row[column], row[f"{column}_standard_error"] = mean_ratio(pairs)
                row[f"whole_{column}"], row[f"whole_{column}_standard_error"] = mean_whole_ratio(pairs)
        rows.append(row | {"rounds": len(taken), "programs": programs})
    report("seeding", rows, options, partial(draw, rows=rows), height=3.5)


def measure(samples: int, times: int) -> dict[str, Turns]:
    """Return what loaders take in so many times the rounds in which each comes behind each other one."""
    files = make_jpegs(samples)
    plain, by_hand, quiet, own, philox = (
        Job(dataset=kind(files), batch_size=BATCH)
        for kind in (Counted, CountedByHand, SaidToDrawNothing, CountedOwn, PhiloxByHand)
    )
    import_peers()
    makes: dict[str, Make] = {
        LOADER: counted(ours, plain, "auto"),
        NOT_SEEDING: counted(ours, quiet, "auto"),
        OWN: counted(ours, own, "auto"),
        REFERENCE: counted(by_torch, plain, DataLoader),
        STATEFUL: counted(by_torch, plain, StatefulDataLoader),
        f"{REFERENCE}{BY_HAND}": counted(by_torch, by_hand, DataLoader),
    }
    if installed(NODES):
        makes |= {
            f"{NODES}{end}": counted(by_nodes, job, "thread")
            for end, job in (("", plain), (BY_HAND, by_hand), (", Philox by hand", philox))
        }
    return cast(
        "dict[str, Turns]", interleave_apart(makes, rounds=times * len(makes), limit_s=100, label="seeding", anew=True)
    )


def counted(contender: Callable[..., Callable[[], object]], job: Job, kind: Any) -> Make:
    """Make a contender whose epochs return `Beside`."""

    def make(stack: ExitStack) -> Callable[[], Beside]:
        run = contender(job, 0, kind, stack)

        def epoch() -> Beside:
            job.dataset.spent, start = 0.0, time.perf_counter()
            run()
            whole = time.perf_counter() - start
            beside = Beside(whole - job.dataset.spent)
            beside.whole = whole
            return beside

        return epoch

    return make


def mean_ratio(pairs: Sequence[tuple[Turns, Turns]]) -> tuple[float, float]:
    """Return 1 and the mean difference over the other's whole time, of each program's rounds and then of the programs."""
    whole = statistics.fmean(other[number].whole for _, other in pairs for number in other)
    means = [statistics.fmean(taken[number] - other[number] for number in other) for taken, other in pairs]
    return 1 + statistics.fmean(means) / whole, standard_error(means) / whole


def mean_whole_ratio(pairs: Sequence[tuple[Turns, Turns]]) -> tuple[float, float]:
    """Return the geometric mean of the whole times' ratios, of each program's rounds and then of the programs."""
    means = [
        statistics.fmean(math.log(taken[number].whole / other[number].whole) for number in other)
        for taken, other in pairs
    ]
    mean = math.exp(statistics.fmean(means))
    return mean, mean * standard_error(means)


def standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def draw(figure: Any, rows: list[Row]) -> None:
    axes = figure.subplots()
    for row in rows:
        name, value, error = (
            row["contender"],
            row["time_over_dataloader"],
            2 * row["time_over_dataloader_standard_error"],
        )
        axes.errorbar(value, name, xerr=error, fmt="o", color=colour_of(name), capsize=3)
        label = f"{value:.3f} ± {error:.3f}" if error else f"{value:g}"
        axes.annotate(label, (value + error, name), (8, 0), textcoords="offset points", va="center", bbox=OVER_LINES)
    axes.axvline(1, color="#24292f", linewidth=0.8, linestyle=":", zorder=0)
    axes.margins(x=0.25, y=0.12)
    axes.invert_yaxis()
    axes.set_xlabel("time over DataLoader's, where they differ: beside decoding (less is better; two standard errors)")
    figure.suptitle("JPEGs decoded and augmented without workers: what seeds of their own cost", x=0.01, ha="left")


if __name__ == "__main__":
    main()
