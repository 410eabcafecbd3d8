"""A progress bar on a terminal."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from loaderkit.system.terminal import console
from loaderkit.system.world import World

T = TypeVar("T")


def with_progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield the items; rank 0 shows a progress bar with the label `what` if stderr is a terminal and rich is installed."""
    drawn = None if World.detect().rank else console(sys.stderr)
    if drawn is None:
        yield from items
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    piped = not sys.stdout.isatty()  # then rich must not redirect what is printed
    with Progress(*columns, console=drawn, transient=True, redirect_stdout=not piped) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)
