"""A progress bar on a terminal."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from loaderkit.system.world import World

T = TypeVar("T")


def with_progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield the items; rank 0 shows a progress bar with the label `what` if stderr is a terminal and rich is installed."""
    if not sys.stderr.isatty() or World.detect().rank:
        yield from items
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield from items
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    piped = not sys.stdout.isatty()  # then rich must not redirect what is printed
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=not piped) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)
