"""What was measured: the rows of the benchmarks' CSV files."""

import csv
from dataclasses import dataclass, replace
from pathlib import Path

Rows = list[dict[str, str]]
BENCHMARKS = Path(__file__).parents[1]
RESULTS = BENCHMARKS / "results"


class NotMeasuredError(Exception):
    """There are no such results."""


@dataclass(frozen=True, slots=True)
class Results:
    """The CSV files of a folder.

    Args:
        folder: Where they are.
        name: The file that is meant where none is named.
    """

    folder: Path
    name: str = ""

    def of(self, name: str) -> "Results":
        return replace(self, name=name or self.name)

    def rows(self, **where: str) -> Rows:
        """Return the rows with these values, at least one."""
        path = self.folder / f"{self.name}.csv"
        if not path.exists():
            raise NotMeasuredError
        with path.open(newline="") as file:
            found = [row for row in csv.DictReader(file) if where.items() <= row.items()]
        if not found:
            raise NotMeasuredError
        return found
