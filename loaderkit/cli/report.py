"""How commands report: results to standard output, complaints to standard error, tables and pictures."""

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]


def say(line: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def complain_of(command: str, error: Exception) -> None:
    """Write an error and its notes. If it comes from the user's own code, also write its type and place."""
    *_, last = traceback.extract_tb(error.__traceback__)
    plain = isinstance(error, ValueError | FileNotFoundError | ImportError) or _PACKAGE in Path(last.filename).parents
    where = "" if plain else f"\n  {last.filename}, line {last.lineno}, in {last.name}"
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    complain(f"loaderkit {command}: {'' if plain else f'{type(error).__name__}: '}{error}{where}{notes}")


def table(rows: list[list[str]]) -> list[str]:
    """Return a table's lines, with rich on a terminal and plain elsewhere. The first row is the head."""
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        return _rich(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _rich(rows: list[list[str]]) -> list[str]:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(rows[0]):
        drawn.add_column(name, justify="right" if number else "left")
    for row in rows[1:]:
        drawn.add_row(*row)
    console = Console(file=sys.stdout)
    with console.capture() as capture:
        console.print(drawn)
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]


@contextlib.contextmanager
def two_axes(path: str, *, height: float, widths: tuple[float, float]) -> Iterator[Any]:
    """Give two matplotlib axes, side by side; write them to a PNG afterwards."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, width_ratios=widths)
    yield axes
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, format="png")
