"""The passes of a position that ended lately: a log asks them for the batches since its last record."""

from collections import deque
from collections.abc import Callable

from loaderkit.sampling.cursor import Cursor

_MOST = 64  # passes that a training step may span
Point = tuple[Cursor, int]  # where a pass started, and the batches counted since
Mark = tuple[int, Point]  # the passes that had ended, and a point of the next one


class Passes:
    """The last points of the passes that ended."""

    def __init__(self) -> None:
        self._last: deque[Point] = deque(maxlen=_MOST)
        self._ended = 0

    def end(self, point: Point) -> None:
        """Record that a pass ended at a point."""
        self._last.append(point)
        self._ended += 1

    def mark(self, point: Point) -> Mark:
        """Return a mark at a point of the present pass, for `since`."""
        return self._ended, point

    def since(self, mark: Mark | None, now: Point, cursor_at: Callable[[Point], Cursor]) -> tuple[list[Point], bool]:
        """Return the points before the batches from a mark to a point; see `Position.batches_since`."""
        passes, first, follows = [*self._last, now], 0, False
        found: list[Point] = []
        if mark is not None and self._ended - mark[0] < len(passes):
            passes, first, follows = passes[-1 - (self._ended - mark[0]) :], mark[1][1], True
        for number, (origin, counted) in enumerate(passes):
            if number:
                first, at = 0, cursor_at(passes[number - 1])
                if origin != at and not (origin.epoch > at.epoch and not origin.samples):  # something moved the loader
                    found, follows = [], False
                follows = follows and not origin.plan  # then its number does not tell where this epoch began
            found += [(origin, batch) for batch in range(first, counted)]
        return found, follows
