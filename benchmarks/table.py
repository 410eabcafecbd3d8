"""Print the results as Markdown tables, or write them between the `<!-- benchmarks -->` markers of the documents.

python benchmarks/table.py
python benchmarks/table.py --write   # the full table into docs/benchmarks.md, five lines into README.md
"""

import argparse
import re
import sys
from pathlib import Path

from measured import NotMeasuredError, read
from summary import CLEARLY
from summary_workloads import workloads
from table_rows import SECTIONS

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SHORT = {  # the README's lines: a workload of summary.csv, its name there, and the script that measures it
    "rows in memory, 0 workers": ("Rows of an array in memory", "rows"),
    "JPEGs in memory, augmented, 2 workers": ("JPEGs decoded and augmented, 2 workers", "pictures"),
    "documents on disk, shuffled, 2 workers": ("Documents on disk, shuffled, 2 workers", "peers/peers_throughput"),
    "resume at 90 % of 10M": ("Resume at 90 % of 10 million samples, which others replay", "resume"),
}


def table(folder: Path) -> str:
    """Make the table: what was measured, ours, theirs, and the script that says so."""
    lines = ["| | loaderkit | for comparison | script |", "|---|---|---|---|"]
    machines: dict[str, list[str]] = {}
    for title, (script, section) in SECTIONS.items():
        try:
            found = list(section(folder))
        except NotMeasuredError:
            found = [(title, "not measured", "", script)]
        lines += [f"| {' | '.join(cells)} | `{name}.py` |" for *cells, name in found]
    for name in sorted(path.stem for path in folder.glob("*.csv")):
        if "machine" in (row := read(name, folder)[0]):
            machines.setdefault(row["machine"], []).append(name)
    where = "; ".join(f"{', '.join(names)}: {machine}" for machine, names in machines.items())
    lines += ["", f"Medians ({where}). Ratios carry over to other machines, milliseconds do not."]
    return "\n".join(line.replace("**", "") for line in lines)  # bold is a win, and these rows are of all kinds


def short_table(folder: Path) -> str:
    """Make the README's table: our speed over DataLoader's and over the best other loader's; the worst rows are in it."""
    lines = ["| speed of loaderkit | over `DataLoader` | over the best of the rest | command |", "|---|---|---|---|"]
    cells = {row["workload"]: speeds_in(row) for row in read("summary", folder)}
    kinds = {row["workload"]: row["kind"] for row in read("summary", folder)}
    files = {workload.name: script_of(workload.file) for workload in workloads()}
    timed = [name for name, kind in kinds.items() if kind == "throughput"]
    worst = {
        max((name for name in timed if "DataLoader" in cells[name]), key=lambda name: cells[name]["DataLoader"]): None,
        max((name for name in timed), key=lambda name: max(cells[name].values())): None,
        max((name for name in cells if name not in timed), key=lambda name: max(cells[name].values(), default=0)): None,
    }
    shown = SHORT | {name: (f"Worst: {name}", files[name]) for name in worst if name not in SHORT}
    for workload, (label, script) in shown.items():
        speeds = dict(cells[workload])
        over = 1 / speeds.pop("DataLoader")
        best = max(speeds, key=lambda name: speeds[name])
        command = f"`python benchmarks/{script}.py`"
        lines += [f"| {label} | {bold(over)} | {bold(1 / speeds[best])} ({best}) | {command} |"]
    return "\n".join(lines)


def speeds_in(row: dict[str, str]) -> dict[str, float]:
    """Return the measured speeds of the others over ours in a row of the summary."""
    return {name: float(value) for name, value in list(row.items())[2:] if re.fullmatch(r"[\d.e+-]+", value)}


def script_of(file: str) -> str:
    """Return the place of a script by its name, without suffix."""
    found = next(path for path in sorted(HERE.rglob(f"{file}.py")))
    return str(found.relative_to(HERE).with_suffix(""))


def bold(over: float) -> str:
    """Return a ratio, bold if it is a win."""
    return f"**{over:.3g} x**" if over > CLEARLY else f"{over:.3g} x"


def write(path: Path, text: str) -> None:
    content = path.read_text()
    parts = re.split(r"(?m)^(<!-- /?benchmarks -->)$", content)
    if len(parts) != 5:
        raise SystemExit(
            f"table: {path.name} has {len(parts) // 2} markers, wanted two: a line <!-- benchmarks -->, and further "
            "down a line <!-- /benchmarks -->."
        )
    before, begin, _, end, after = parts
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write into docs/benchmarks.md and README.md")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the CSV files are")
    given = parser.parse_args()
    full, short = table(given.results), short_table(given.results)
    if given.write:
        write(HERE.parent / "docs" / "benchmarks.md", full)
        write(HERE.parent / "README.md", short)
    else:
        sys.stdout.write(f"{short}\n\n{full}\n")


if __name__ == "__main__":
    main()
