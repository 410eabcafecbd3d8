"""What the two tables of resumes share: errors of peers as cells, and the tables as Markdown and CSV."""

import csv
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from lib.driver import Answers

FOLDERS = re.compile(r"(?<![\w.:])/(?:[^\s/'\"]+/)+")  # of this run: a reader has no use for them
Table = dict[str, dict[str, str]]  # cells by case, for each contender


class FailedError(Exception):
    """A peer's own error."""


def checked(answers: Answers, empty: str = "") -> Answers:
    """Return the answers of a peer's ranks; raise a FailedError if one is an error. `empty` is said of an error without a message."""
    for answer in answers:
        if "error" in answer:
            text = FOLDERS.sub(".../", answer["message"]).removeprefix(f"{answer['error']}: ")
            said = f'"{text[:80].strip()}"' if text else empty if answer["error"].endswith("Error") else ""
            raise FailedError(f"{answer['error']} {said}".strip())
    return answers


def cells_of(name: str, cases: Mapping[str, Callable[[], str]]) -> dict[str, str]:
    """Return the cell of each case: what its function says, or the peer's error."""
    found = {}
    for case, run in cases.items():
        try:
            found[case] = run()
        except FailedError as error:
            found[case] = str(error)
        print(f"{name}: {case}: {found[case]}", file=sys.stderr, flush=True)
    return found


def turned(table: Table) -> Table:
    """Return a table with its rows as columns."""
    cases = next(iter(table.values()))
    return {case: {name: cells[case] for name, cells in table.items()} for case in cases}


def markdown(table: Table) -> str:
    """Return a line for each entry."""
    names = list(next(iter(table.values())))
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, cells in table.items():
        shown = [f"**{cell}**" if cell == "exact" else cell.replace("|", "/") for cell in cells.values()]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def write(name: str, title: str, about: str, text: str, by_case: Table, out: Path) -> None:
    """Write `<name>.md` and `<name>.csv`."""
    out.mkdir(parents=True, exist_ok=True)
    rest = "\n\n".join(about.strip().split("\n\n")[1:])
    head = f"<!-- written by benchmarks/peers/{name}.py -->\n\n{title}"
    (out / f"{name}.md").write_text(f"{head}\n\n{rest}\n\n{text}\n")
    with (out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", *next(iter(by_case.values()))])
        writer.writerows([case, *cells.values()] for case, cells in by_case.items())
