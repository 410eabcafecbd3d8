"""Print the results as a Markdown table, or write it into a file between its `<!-- benchmarks -->` markers.

python benchmarks/table.py
python benchmarks/table.py --write README.md
"""

import argparse
import re
import sys
from pathlib import Path

from measured import NotMeasuredError, read
from table_rows import SECTIONS

RESULTS = Path(__file__).parent / "results"


def table(folder: Path) -> str:
    """Make the table: what was measured, ours, theirs, and the script that says so."""
    lines = ["| | loaderkit | for comparison | script |", "|---|---|---|---|"]
    machines: dict[str, list[str]] = {}
    for title, (script, section) in SECTIONS.items():
        try:
            found = list(section(folder))
        except NotMeasuredError:
            found = [(title, "not measured", "", script)]
        lines += [f"| {' | '.join(cells)} | [`{name}.py`](benchmarks/{name}.py) |" for *cells, name in found]
    for name in sorted(path.stem for path in folder.glob("*.csv")):
        if "machine" in (row := read(name, folder)[0]):
            machines.setdefault(row["machine"], []).append(name)
    where = "; ".join(f"{', '.join(names)}: {machine}" for machine, names in machines.items())
    lines += ["", f"Medians ({where}). Ratios carry over to other machines, milliseconds do not."]
    lines += ["", "What was wanted, and what is met: [`results/targets.md`](benchmarks/results/targets.md)."]
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
    parser.add_argument("--write", type=Path, help="the file to write the table into")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the CSV files are")
    given = parser.parse_args()
    text = table(given.results)
    if given.write is None:
        sys.stdout.write(text + "\n")
    else:
        write(given.write, text)


if __name__ == "__main__":
    main()
