"""Put every workload of the suite by every loader into one table and one picture.

Reads the CSV files of the scripts. In `summary.csv`, a cell is a loader's speed over that of lk.Loader with default settings; below 1,
loaderkit is ahead. `summary.md` and `summary.png` show lk.Loader's speed over the others'; above 1, loaderkit is ahead. `behind.md` lists where it is not. If a workload says
so, its dataset draws nothing or only from `lk.sample_rng()`. For data on disk, an epoch after the first counts. If a loader can run threads
or processes, the faster one counts. A cell is empty if it was not measured. The geometric means are loaderkit's speed over DataLoader's.
"""

import csv
import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from report.declare import LOADERS, Speed
from report.questions import QUESTIONS, declared, file_of
from report.results import NotMeasuredError, Results

SHOWN = {  # the picture's workloads, and their labels
    "rows in memory, 0 workers": "Rows of an array in memory",
    "windows of tokens, 2 workers": "Windows of tokens, 2 workers",
    "documents on disk, shuffled, 2 workers": "Documents on disk, shuffled, 2 workers",
    "38 MB of float32 pictures a batch, 2 workers": "Batches of 38 MB, 2 workers",
    "stragglers, computing, batches of 1": "1 of 20 samples is slow, 2 workers",
    "100 us a sample, 2 workers": "100 us a sample, seeded, 2 workers",
    "JPEGs on disk, shuffled, 2 workers": "JPEGs in tar, shuffled, 2 workers",
    "JPEGs in memory, augmented, 2 workers": "JPEGs decoded and augmented, 2 workers",
    "JPEGs on disk, shuffled, 0 workers": "JPEGs in tar, shuffled, no workers",
    "100 us a sample, 0 workers": "100 us a sample, seeded, no workers",
}
CLEARLY = 1.05  # a smaller difference is level
Found = dict[str, float]


def read(workload: Speed, results: Results) -> tuple[Found, str]:
    """Return the loaders' speeds over ours, and the machine."""
    try:
        rows = results.rows(**workload.where)
    except NotMeasuredError:
        return {}, ""
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


def mean(found: list[tuple[Speed, Found]], timed: bool) -> float:
    """Return the geometric mean of our speed over DataLoader's."""
    values = [
        -math.log(cells["DataLoader"])
        for workload, cells in found
        if "DataLoader" in cells and (workload.timed or not timed)
    ]
    return math.exp(sum(values) / len(values)) if values else float("nan")


def summarise(folder: Path) -> tuple[list[tuple[Speed, Found]], list[str]]:
    """Return all workloads with their cells, and the machines."""
    found, machines = list[tuple[Speed, Found]](), list[str]()
    for question in QUESTIONS:
        for workload in declared(question).speeds:
            cells, machine = read(workload, Results(folder, file_of(question)))
            found.append((workload, cells))
            machines += [machine] if machine and machine not in machines else []
    return found, machines


def ahead(folder: Path) -> list[tuple[Speed, str, float]]:
    """Return where another loader is ahead, and how fast it is over ours."""
    found, _ = summarise(folder)
    return [(workload, loader, speed) for workload, cells in found for loader, speed in cells.items() if speed > 1]


def draw(found: list[tuple[Speed, Found]], machines: list[str], path: Path) -> None:
    """Draw our speed over DataLoader's for the workloads in SHOWN, the fastest first."""
    speeds = {workload.name: 1 / cells["DataLoader"] for workload, cells in found if "DataLoader" in cells}
    bars = sorted((speeds[name], label) for name, label in SHOWN.items() if name in speeds)
    figure = plt.figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    colours = ["#1f6feb" if speed >= 1 else "#d1603d" for speed, _ in bars]
    axes.barh([label for _, label in bars], [speed - 1 for speed, _ in bars], left=1, color=colours, height=0.7)
    for row, (speed, _) in enumerate(bars):
        text = f" {speed:.0f} x" if speed > 9.95 else f" {speed:.1f} x" if speed >= 1 else f" {speed:.2f} x"
        axes.text(max(speed, 1), row, text, va="center_baseline", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(0.8, 1.6 * max((speed for speed, _ in bars), default=1))
    axes.set_xticks([1, 2, 5, 10, 20, 50], ["1 x", "2 x", "5 x", "10 x", "20 x", "50 x"])
    axes.minorticks_off()
    axes.axvline(1, color="#24292f", linewidth=1)
    axes.tick_params(length=0, labelsize=9)
    axes.grid(axis="x", color="#d8dee4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.set_title("Samples a second, compared with torch's DataLoader (1 x; log scale)", fontsize=11, loc="left")
    figure.supxlabel("\n".join(machines), fontsize=7, color="#6e7781")
    figure.savefig(path, dpi=130)


def markdown(found: list[tuple[Speed, Found]]) -> str:
    """Return our speed over every loader's as Markdown tables, without columns that have no value."""
    groups = {
        "In memory": [line for line in found if line[0].timed and " on disk" not in line[0].name],
        "On disk": [line for line in found if line[0].timed and " on disk" in line[0].name],
        "Start-up, resume and memory": [line for line in found if not line[0].timed],
    }
    timed = [workload for workload, cells in found if workload.timed and "DataLoader" in cells]
    parts = [
        "<!-- written by benchmarks/report -->",
        f"Over {len(timed)} workloads of throughput, the geometric mean is {mean(found, True):.1f} x the speed of `DataLoader`.",
    ]
    for title, lines in groups.items():
        loaders = [loader for loader in LOADERS if any(loader in cells for _, cells in lines)]
        rows = [[title, *loaders], ["---"] * (len(loaders) + 1)]
        rows += [[workload.name, *(over(cells.get(loader)) for loader in loaders)] for workload, cells in lines]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts) + "\n"


def over(theirs: float | None) -> str:
    """Return our speed over another loader's, given theirs over ours."""
    if theirs is None:
        return ""
    ours = 1 / theirs
    text = f"{ours:,.0f}" if ours > 99.5 else f"{ours:.2g}" if ours > 9.95 else f"{ours:.2f}"
    return f"*{text}*" if theirs > CLEARLY else text


def behind(found: list[tuple[Speed, Found]]) -> str:
    """Return where loaderkit is clearly behind another loader, as a list, the worst first, and how many cells there are."""
    cells = [(workload, loader, speed) for workload, line in found for loader, speed in line.items()]
    slower = sorted((cell for cell in cells if cell[2] > CLEARLY), key=lambda cell: -cell[2])
    lines = [f"- {workload.name}: {1 / speed:.2f} of {loader}" for workload, loader, speed in slower]
    return "\n".join(
        [
            "<!-- written by benchmarks/report -->",
            f"Of {len(cells)} comparisons, loaderkit is more than 5 % behind in {len(slower)}. These are all of them, as its speed "
            "over that of the other loader (for memory: the other's over its own):",
            "",
            *lines,
            "",
            f"The other {len(cells) - len(slower)} are within 5 % or in favour of loaderkit.",
            "",
        ]
    )


def write(folder: Path) -> None:
    """Write `summary.csv`, `summary.md`, `behind.md` and `summary.png`."""
    found, machines = summarise(folder)
    if not machines:
        raise SystemExit(f"summary: no results in {folder}. Run: make bench")
    with (folder / "summary.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["workload", "kind", *LOADERS])
        for workload, cells in found:
            kind = "throughput" if workload.timed else "latency or memory"
            writer.writerow([workload.name, kind, *(short(cells.get(loader)) for loader in LOADERS)])
    (folder / "summary.md").write_text(markdown(found))
    (folder / "behind.md").write_text(behind(found))
    draw(found, machines, folder / "summary.png")


def short(value: Any) -> str:
    return "not measured" if value is None else f"{value:.3g}"
