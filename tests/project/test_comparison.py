"""The comparison of loaders says what the committed tables say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line
    for line in (ROOT / "docs" / "moving" / "comparison.md").read_text().splitlines()
    if line.endswith(("| m |", "| d |"))
]
MEASURED = (ROOT / "benchmarks" / "results" / "peers_resume.md").read_text()
COLUMNS = {
    "same setting, shuffled": 2,
    "2 workers, then 3": 3,
    "2 ranks, then 1": 4,
    "1 rank, then 2": 5,
    "batch 8, then 16": 6,
}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def table() -> dict[str, list[str]]:
    return {cells(line)[0]: cells(line)[1:] for line in MEASURED.splitlines() if line.startswith("| ")}


def in_words(cell: str) -> str:
    if "Error" in cell:
        return "error"
    counts = re.findall(r"(\d+) (dup|skip)", cell.replace(",", ""))
    return ", ".join(f"{n} {'twice' if kind == 'dup' else 'lost'}" for n, kind in counts) or cell.strip("*")


def test_the_page_compares_ten_loaders_with_versions() -> None:
    assert len(ROWS) > 10
    for row in ROWS:
        assert re.fullmatch(r"\d+(\.\d+)+", cells(row)[1]), row


@pytest.mark.parametrize("column", COLUMNS)
def test_a_measured_cell_is_that_of_the_table(column: str) -> None:
    # The first row of a Markdown table has an empty first cell.
    head = next(line for line in MEASURED.splitlines() if line.startswith("| | loaderkit"))
    versions = [name.split()[-1].split("+")[0] for name in head.strip("| ").split(" | ")]
    found = dict(zip(versions, table()[column], strict=True))
    compared = 0
    for row in map(cells, ROWS):
        if row[-1] == "m" and row[1] in found:
            assert row[COLUMNS[column]] == in_words(found[row[1]]), (row[0], column)
            compared += 1
    assert compared == len(versions)
