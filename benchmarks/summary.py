"""Put every workload of the suite by every loader into one table and one picture: speed over loaderkit's.

Reads the CSV files of the other scripts and writes `summary.csv` and `summary.png`. A cell is a loader's speed over that of lk.Loader with
default settings; below 1, loaderkit is ahead. If a workload says so, its dataset draws nothing or only from `lk.sample_rng()`. For data on disk, an
epoch after the first counts. If a loader can run threads or processes, the faster one counts. A cell is empty if it was not
measured. The geometric means are loaderkit's speed over DataLoader's.
"""

import argparse
import csv
import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from harness import RESULTS
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from summary_workloads import LOADERS, Workload, workloads

LABELS = tuple(
    name.replace(" ", "\n", 1).replace("DataLoader", "\nDataLoader").replace(".", "\n.").replace("-", "\n-").strip()
    for name in LOADERS
)
Found = dict[str, float]


def read(workload: Workload, folder: Path) -> tuple[Found, str]:
    """Return the loaders' speeds over ours, and the machine."""
    path = folder / f"{workload.file}.csv"
    if not path.exists():
        return {}, ""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if workload.where.items() <= row.items()]
    values = {row["contender"]: float(row[workload.column]) for row in rows if row.get(workload.column)}
    values = {name: value for name, value in values.items() if value > 0}  # nan is not
    ours = values.get(workload.ours)
    if ours is None:
        return {}, ""
    found: Found = {}
    for loader in LOADERS:
        name = workload.names.get(loader)
        mine = [
            value
            for contender, value in values.items()
            if contender == name or (name is None and is_of(loader, contender))
        ]
        if mine:
            found[loader] = max(mine) / ours if workload.more else ours / min(mine)
    return found, rows[0]["machine"]


def is_of(loader: str, contender: str) -> bool:
    """Return whether a contender is the loader in its usual form, without batched indices or seeding by hand."""
    start = contender.split("(")[0].split(",")[0].strip()
    return start == loader and not any(
        part in contender for part in ("sampler of batches", "prefetch_factor", "by hand")
    )


def mean(found: list[tuple[Workload, Found]], timed: bool) -> float:
    """Return the geometric mean of our speed over DataLoader's."""
    values = [
        -math.log(cells["DataLoader"])
        for workload, cells in found
        if "DataLoader" in cells and (workload.timed or not timed)
    ]
    return math.exp(sum(values) / len(values)) if values else float("nan")


def summarise(folder: Path) -> tuple[list[tuple[Workload, Found]], list[str]]:
    """Return all workloads with their cells, and the machines."""
    found, machines = [], []
    for workload in workloads():
        cells, machine = read(workload, folder)
        found.append((workload, cells))
        machines += [machine] if machine and machine not in machines else []
    return found, machines


def ahead(folder: Path) -> list[tuple[Workload, str, float]]:
    """Return where another loader is ahead, and how fast it is over ours."""
    found, _ = summarise(folder)
    return [(workload, loader, speed) for workload, cells in found for loader, speed in cells.items() if speed > 1]


def draw(found: list[tuple[Workload, Found]], machines: list[str], path: Path) -> None:
    figure = plt.figure(figsize=(11, 0.29 * len(found) + 2), layout="constrained")
    axes = figure.subplots()
    grid = [[cells.get(loader, math.nan) for loader in LOADERS] for _, cells in found]
    colours = LinearSegmentedColormap.from_list("ahead", ["#1f6feb", "#cfe3ff", "#ffffff", "#ffd9c7", "#d1603d"])
    colours.set_bad("#eef0f2")
    axes.imshow(grid, cmap=colours, norm=LogNorm(0.01, 100), aspect="auto")
    for row, line in enumerate(grid):
        for column, value in enumerate(line):
            text = "not measured" if math.isnan(value) else f"{value:.0f}" if value > 9.95 else f"{value:.2f}"
            text = "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.095 else text
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=6 if math.isnan(value) else 8,
                color="#8c959f" if math.isnan(value) else "white" if value < 0.03 or value > 30 else "black",
                weight="bold" if value > 1.05 else "normal",
            )
    axes.set_xticks(range(len(LOADERS)), LABELS, fontsize=8)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(found)), [workload.name for workload, _ in found], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.suptitle(
        "Speed over loaderkit's: blue, loaderkit is ahead; red and bold, the other is. loaderkit over DataLoader, "
        f"geometric mean:\n{mean(found, True):.1f} x over the workloads of throughput, "
        f"{mean(found, False):.1f} x over all",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    figure.supxlabel("; ".join(machines), fontsize=7, color="#6e7781")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the CSV files are, and the summary goes")
    folder: Path = parser.parse_args().results
    found, machines = summarise(folder)
    if not machines:
        raise SystemExit(f"summary: no results in {folder}. Run: make bench")
    with (folder / "summary.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["workload", "kind", *LOADERS])
        for workload, cells in found:
            kind = "throughput" if workload.timed else "latency or memory"
            writer.writerow([workload.name, kind, *(short(cells.get(loader)) for loader in LOADERS)])
    draw(found, machines, folder / "summary.png")
    for workload, cells in found:
        shown = [f"{loader} {short(value)}" for loader, value in cells.items()]
        print(f"{workload.name}: {', '.join(shown) or 'not measured'}")
    for workload, loader, speed in ahead(folder):
        print(f"ahead of loaderkit: {loader} at {workload.name}: {speed:.2f} x")
    print(
        f"loaderkit over DataLoader, geometric mean: {mean(found, True):.2f} (throughput), {mean(found, False):.2f} (all)"
    )


def short(value: Any) -> str:
    return "not measured" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
