"""The tables of the documents: all lines in docs/benchmarks.md, five in README.md, and the scripts in benchmarks/README.md."""

import csv
import re
import statistics
from pathlib import Path

from report.questions import QUESTIONS, asks, declared, file_of
from report.results import NotMeasuredError, Results
from report.summary import CLEARLY

SHORT = {  # the README's lines: a workload of summary.csv, and its name there
    "rows in memory, 0 workers": "Rows of an array in memory",
    "JPEGs in memory, augmented, 2 workers": "JPEGs decoded and augmented, 2 workers",
    "documents on disk, shuffled, 2 workers": "Documents on disk, shuffled, 2 workers",
    "resume at 90 % of 10M": "Resume at 90 % of 10 million samples, which others replay",
}


def table(folder: Path) -> str:
    """Make the table: what was measured, ours, theirs, and the script that says so."""
    lines = ["| | loaderkit | for comparison | script |", "|---|---|---|---|"]
    for question in QUESTIONS:
        results, report = Results(folder, file_of(question)), declared(question)
        try:
            found = [[one if isinstance(one, str) else one(results) for one in line] for line in report.lines]
        except NotMeasuredError:
            found = [[asks(question).rstrip("."), "not measured", ""]]
        lines += [f"| {' | '.join(cells)} | `{question}.py` |" for cells in found]
    lines.append(f"| {' | '.join(over_all(folder))} | `report` |")
    machines: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            if machine := next(csv.DictReader(file)).get("machine"):
                machines.setdefault(machine, []).append(path.stem)
    where = "; ".join(f"{', '.join(names)}: {machine}" for machine, names in machines.items())
    lines += ["", f"Medians ({where}). Ratios carry over to other machines, milliseconds do not."]
    return "\n".join(lines)


def over_all(folder: Path) -> tuple[str, str, str]:
    """Return the line of the mean over the summary's workloads, and where another loader is ahead."""
    try:
        rows = Results(folder, "summary").rows(kind="throughput")
    except NotMeasuredError:
        return "Every workload by every loader", "not measured", ""
    cells = [(row["workload"], name, float(speed)) for row in rows for name, speed in speeds_in(row).items()]
    ours = [1 / speed for _, name, speed in cells if name == "DataLoader"]
    ahead = [f"{name} at {workload} ({speed:.2f} x)" for workload, name, speed in cells if speed > CLEARLY]
    return (
        f"{len(rows)} workloads of throughput, geometric mean over `DataLoader`; of {len(cells)} comparisons with any loader those in which "
        "the other is more than 5 % ahead",
        f"{statistics.geometric_mean(ours):.1f} x",
        ", ".join(ahead) or "none",
    )


def short_table(folder: Path) -> str:
    """Make the README's table: our speed over DataLoader's and over the best other loader's; the worst rows are in it."""
    lines = ["| speed of loaderkit | over `DataLoader` | over the best of the rest | command |", "|---|---|---|---|"]
    rows = Results(folder, "summary").rows()
    cells = {row["workload"]: speeds_in(row) for row in rows}
    timed = [row["workload"] for row in rows if row["kind"] == "throughput"]
    scripts = {speed.name: question for question in QUESTIONS for speed in declared(question).speeds}
    worst = (
        max((name for name in timed if "DataLoader" in cells[name]), key=lambda name: cells[name]["DataLoader"]),
        max(timed, key=lambda name: max(cells[name].values())),
        max((name for name in cells if name not in timed), key=lambda name: max(cells[name].values(), default=0)),
    )
    for workload, label in (SHORT | {name: f"Worst: {name}" for name in worst if name not in SHORT}).items():
        speeds = dict(cells[workload])
        over = 1 / speeds.pop("DataLoader")
        best = max(speeds, key=lambda name: speeds[name])
        command = f"`python benchmarks/{scripts[workload]}.py`"
        lines.append(f"| {label} | {bold(over)} | {bold(1 / speeds[best])} ({best}) | {command} |")
    return "\n".join(lines)


def speeds_in(row: dict[str, str]) -> dict[str, float]:
    """Return the measured speeds of the others over ours in a row of the summary."""
    return {name: float(value) for name, value in list(row.items())[2:] if re.fullmatch(r"[\d.e+-]+", value)}


def bold(over: float) -> str:
    """Return a ratio, bold if it is a win."""
    return f"**{over:.3g} x**" if over > CLEARLY else f"{over:.3g} x"


def scripts() -> str:
    """Make the table of the scripts."""
    return "\n".join(
        ["| script | what it does |", "|---|---|", *(f"| `{name}.py` | {asks(name)} |" for name in QUESTIONS)]
    )
