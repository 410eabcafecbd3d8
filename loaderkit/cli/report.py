"""What commands write: results to standard output, errors to standard error, tables and pictures."""

import contextlib
import sys
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from loaderkit.system.terminal import coloured, console

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

_PACKAGE = Path(__file__).parents[1]


def say(line: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def complain_of(program: str, error: Exception) -> None:
    """Write an error and its notes. If it comes from the user's own code, also write its type, file and line."""
    *_, last = traceback.extract_tb(error.__traceback__)
    plain = isinstance(error, ValueError | FileNotFoundError | ImportError) or _PACKAGE in Path(last.filename).parents
    where = "" if plain else f"\n  {last.filename}, line {last.lineno}, in {last.name}"
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    name = coloured(f"{program}:", "bold red", sys.stderr)
    complain(f"{name} {'' if plain else f'{type(error).__name__}: '}{error}{where}{notes}")


def table(rows: list[list[str]], left: Collection[int] = (0,)) -> list[str]:
    """Return a table's lines, drawn on a terminal and plain elsewhere.

    Args:
        rows: The first row is the head.
        left: Columns that are aligned to the left.
    """
    terminal = console(sys.stdout)
    if terminal is not None:
        return _drawn(terminal, rows, left)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    put = [str.ljust if number in left else str.rjust for number in range(len(widths))]
    return [
        "  ".join(each(*cell) for each, cell in zip(put, zip(row, widths, strict=True), strict=True)).rstrip()
        for row in rows
    ]


def _drawn(terminal: "Console", rows: list[list[str]], left: Collection[int]) -> list[str]:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="" if terminal.no_color else "bold")
    for number, name in enumerate(rows[0]):
        drawn.add_column(name, justify="left" if number in left else "right")
    for row in rows[1:]:
        drawn.add_row(*map(Text, row))  # a cell's brackets are no markup
    with terminal.capture() as capture:
        terminal.print(drawn)
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]


def check_plot(path: str | None) -> None:
    """Raise a FileNotFoundError if the folder for the picture `path` does not exist. None is no picture."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"no folder for --plot {path}.")


@contextlib.contextmanager
def two_axes(path: str, *, height: float, widths: tuple[float, float]) -> "Iterator[tuple[Axes, Axes]]":
    """Yield two matplotlib axes, side by side; at the end write them to a PNG. `height` is in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, width_ratios=widths)
    yield axes
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, format="png")
