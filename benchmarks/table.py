"""Print the results as Markdown tables, or write them between the `<!-- benchmarks -->` markers of the documents.

python benchmarks/table.py
python benchmarks/table.py --write   # the full table into docs/benchmarks.md, five lines into README.md
"""

import argparse
import re
import sys
from pathlib import Path

from measured import NotMeasuredError, read
from table_rows import SECTIONS

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SHORT = {  # the README's lines: a workload of summary.csv, its name there, and the script that measures it
    "rows in memory, 0 workers": ("Rows of an array in memory", "rows"),
    "JPEGs in memory, augmented, 2 workers": ("JPEGs decoded and augmented, 2 workers", "pictures"),
    "documents on disk, shuffled, 2 workers": ("Documents on disk, shuffled, 2 workers", "peers/peers_throughput"),
    "100 us a sample, 0 workers": ("100 us a sample, seeded, no workers", "per_sample"),
    "resume at 90 % of 10M": ("Resume at 90 % of 10 million samples", "resume"),
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
    return "\n".join(lines)


def short_table(folder: Path) -> str:
    """Make the README's table: our speed over DataLoader's and over the best other loader's."""
    lines = ["| speed of loaderkit | over `DataLoader` | over the best other loader | command |", "|---|---|---|---|"]
    cells = {row["workload"]: row for row in read("summary", folder)}
    for workload, (label, script) in SHORT.items():
        row = cells[workload]
        speeds = {
            name: float(value) for name, value in list(row.items())[2:] if re.fullmatch(r"[\d.e+-]+", value)
        }  # over ours
        over = 1 / speeds.pop("DataLoader")
        best = max(speeds, key=lambda name: speeds[name])
        lines += [
            f"| {label} | **{over:.3g} x** | {1 / speeds[best]:.3g} x ({best}) | `python benchmarks/{script}.py` |"
        ]
    return "\n".join(lines)


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
