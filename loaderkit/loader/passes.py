"""The passes of a position over its data: the present one, and those that ended lately."""

from collections import deque

from loaderkit.loader.indexed_plan import IndexedPlan, Point
from loaderkit.sampling.cursor import Cursor

_MOST = 64  # passes that a training step may span
Mark = tuple[int, Point]  # the passes that had ended, and a point of the next one


class Passes:
    """Counts the batches of the present pass, and keeps the last point of each earlier pass, for a StepLog.

    Args:
        plan: The plan that the passes follow.

    Attributes:
        origin: Where the present pass started, or will start.
        counted: Batches that were counted since then.
        left: Batches of the pass that are not counted yet.
    """

    def __init__(self, plan: IndexedPlan) -> None:
        self._plan = plan
        self.origin, self.counted, self.left = Cursor(), 0, 0
        self._last: deque[Point] = deque(maxlen=_MOST)
        self._ended = 0

    @property
    def point(self) -> Point:
        """The point after the last counted batch."""
        return self.origin, self.counted

    def count(self) -> bool:
        """Count a batch, and return whether it is the last of the pass."""
        self.counted += 1
        self.left -= 1
        return self.left == 0

    def end(self, last: Point, following: Cursor) -> None:
        """End the present pass at a point; the next one starts at a cursor."""
        if last[1]:
            self._last.append(last)
            self._ended += 1
        self.origin, self.counted = following, 0

    def mark(self, point: Point) -> Mark:
        """Return a mark at a point of the present pass, for `since`."""
        return self._ended, point

    def since(self, mark: Mark | None, now: Point) -> tuple[list[Point], bool]:
        """Return the points before the batches from a mark to a point; see `PassLog.since`."""
        passes, first, follows = [*self._last, now], 0, False
        found: list[Point] = []
        if mark is not None and self._ended - mark[0] < len(passes):
            passes, first, follows = passes[-1 - (self._ended - mark[0]) :], mark[1][1], True
        for number, (origin, counted) in enumerate(passes):
            if number:
                first, at = 0, self._plan.cursor_at(passes[number - 1])
                if origin != at and not (origin.epoch > at.epoch and not origin.samples):  # something moved the loader
                    found, follows = [], False
                follows = follows and not origin.plan  # else the epoch's number does not tell where the epoch began
            found += [(origin, batch) for batch in range(first, counted)]
        return found, follows

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"left": 0}  # a copy has no pass
