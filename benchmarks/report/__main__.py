"""Write the tables, targets and pictures from the CSV files of the scripts.

python benchmarks/report             # into benchmarks/results, README.md, docs/benchmarks.md and benchmarks/README.md
python benchmarks/report --results DIR   # into a folder with other CSV files alone
"""

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from report import pictures, summary, table, targets
from report.questions import QUESTIONS
from report.results import BENCHMARKS, RESULTS


def write(path: Path, text: str) -> None:
    """Write a table between the two markers of a page."""
    parts = re.split(r"(?m)^(<!-- /?benchmarks -->)$", path.read_text())
    if len(parts) != 5:
        raise SystemExit(
            f"report: {path.name} has {len(parts) // 2} markers, wanted two: a line <!-- benchmarks -->, and further "
            "down a line <!-- /benchmarks -->."
        )
    before, begin, _, end, after = parts
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="where the CSV files are, and the tables go")
    given = parser.parse_args()
    folder = given.results or RESULTS
    summary.write(folder)
    text = targets.page(folder)
    (folder / "targets.md").write_text(text)
    print(text)
    for question in QUESTIONS:
        pictures.draw(question, folder)
    if given.results:
        return
    write(BENCHMARKS.parent / "docs" / "benchmarks.md", table.table(folder))
    write(BENCHMARKS.parent / "README.md", table.short_table(folder))
    write(BENCHMARKS / "README.md", table.scripts())


if __name__ == "__main__":
    main()
