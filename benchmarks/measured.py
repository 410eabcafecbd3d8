"""What was measured: the rows of the benchmarks' CSV files."""

import csv
from dataclasses import dataclass
from pathlib import Path

Rows = list[dict[str, str]]
Line = tuple[str, str, str, str]  # what was measured, ours, theirs, the script


class NotMeasuredError(Exception):
    """There are no such results."""


def read(name: str, folder: Path) -> Rows:
    path = folder / f"{name}.csv"
    if not path.exists():
        raise NotMeasuredError
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def number(text: str, unit: str = "") -> str:
    value = float(text)
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"
    return shown + unit


def pick(rows: Rows, **wanted: str) -> dict[str, str]:
    """Return the row with these values."""
    for row in rows:
        if wanted.items() <= row.items():
            return row
    raise NotMeasuredError


@dataclass(frozen=True, slots=True)
class Results:
    """The CSV files of a folder."""

    folder: Path

    def rows(self, name: str, **where: str) -> Rows:
        """Return the rows with these values, at least one."""
        found = [row for row in read(name, self.folder) if where.items() <= row.items()]
        if not found:
            raise NotMeasuredError
        return found

    def value(self, name: str, column: str, **where: str) -> float:
        """Return a number of the first row with these values."""
        return float(self.rows(name, **where)[0][column] or "nan")
