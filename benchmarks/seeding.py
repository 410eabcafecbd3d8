"""What it costs that samples have seeds of their own, over the JPEGs of `pictures.py` without workers, where little else differs.

An epoch of `pictures.py` takes 5 % to 10 % more or less in each process, by where memory lies in its heap, and seeding takes 2 % or 3 %.
So here are 256 pictures an epoch, few contenders and many rounds, each turn in a new process with another heap. Ratios are geometric
means of those within the rounds, beside their standard errors. *Not seeding* is lk.Loader told that the data draws nothing, which is not
so: all that is left is the loader itself. *sample_rng* draws from `lk.sample_rng()` alone, and seeds none of the three generators.
*Seeded by hand* are peers over a dataset that seeds the three for each sample, *Philox by hand* one whose dataset makes a generator of
the same kind for each and draws as *sample_rng* does.
"""

import math
import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any

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
COUNT = 8 * BATCH


class SaidToDrawNothing(Augmented):
    draws_nothing = True


class PhiloxByHand(Augmented):
    """Draws from a generator made for the sample."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._draw(index, np.random.Generator(np.random.Philox(key=index)))


def main() -> None:
    options = parse_options(__doc__)
    files = make_jpegs(COUNT)
    plain, by_hand, quiet, own, philox = (
        Job(dataset=kind(files), batch_size=BATCH) for kind in (Augmented, ByHand, SaidToDrawNothing, Own, PhiloxByHand)
    )
    import_peers()
    makes: dict[str, Make] = {
        LOADER: partial(ours, plain, 0, "auto"),
        NOT_SEEDING: partial(ours, quiet, 0, "auto"),
        OWN: partial(ours, own, 0, "auto"),
        REFERENCE: partial(by_torch, plain, 0, DataLoader),
        STATEFUL: partial(by_torch, plain, 0, StatefulDataLoader),
        f"{REFERENCE}{BY_HAND}": partial(by_torch, by_hand, 0, DataLoader),
    }
    if installed(NODES):
        makes |= {
            f"{NODES}{end}": partial(by_nodes, job, 0, "thread")
            for end, job in (("", plain), (BY_HAND, by_hand), (", Philox by hand", philox))
        }
    found = interleave_apart(makes, rounds=2 if options.quick else 270, limit_s=1000, label="seeding", anew=True)
    rows: list[Row] = []
    for name, taken in found.items():
        row: Row = {"contender": name, "us_per_sample": statistics.median(taken.values()) / COUNT * 1e6}
        for column, other in OVER.items():
            if other in found:
                row[column], row[f"{column}_standard_error"] = mean_ratio(taken, found[other])
        rows.append(row | {"rounds": len(taken)})
    report("seeding", rows, options, partial(draw, rows=rows), height=3.5)


def mean_ratio(taken: Mapping[int, float], reference: Mapping[int, float]) -> tuple[float, float]:
    """Return the geometric mean over the rounds of taken / reference, and its standard error."""
    logs = [math.log(taken[number] / reference[number]) for number in taken.keys() & reference.keys()]
    mean = math.exp(statistics.fmean(logs))
    return mean, mean * statistics.stdev(logs) / math.sqrt(len(logs))


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
    axes.margins(x=0.2, y=0.12)
    axes.invert_yaxis()
    axes.set_xlabel("time over DataLoader's (less is better; two standard errors)")
    figure.suptitle("JPEGs decoded and augmented without workers: what seeds of their own cost", x=0.01, ha="left")


if __name__ == "__main__":
    main()
