"""The positions after each of the last batches, because a Trainer fetches batches before it trains on them."""

from collections import deque
from typing import Any

from loaderkit.loader.position import Position


class History:
    """The points of a position since a mark, counted in batches.

    The mark is the point where the position's next pass starts.
    """

    def __init__(self, position: Position) -> None:
        self._position = position
        self._points: deque[Any] = deque([position.upcoming()])
        self._forgotten = 0  # batches since the mark whose points are gone

    @property
    def epoch(self) -> int:
        """The position's epoch at the oldest point."""
        return self._position.cursor_at(self._points[0]).epoch

    def record(self) -> None:
        """Add the point after a batch that was yielded."""
        self._points.append(self._position.yielded() or self._position.point())

    def forget(self, batches: int) -> None:
        """Drop the points before this many batches after the mark."""
        while self._forgotten < batches and len(self._points) > 1:
            self._points.popleft()
            self._forgotten += 1

    def state_after(self, batches: int, *, over: bool) -> dict[str, Any]:
        """Return the state `batches` batches after the mark; if the epoch is over there, its end's state."""
        point = self._after(batches)
        return self._position.state_at(self._position.epoch_after(point) if over else point, self._points)

    def rewind(self) -> None:
        """Return to the mark."""
        self._position.go_to(self._points[0])

    def end_epoch(self, batches: int) -> None:
        """End a Trainer's epoch that used this many batches since the mark."""
        self._position.go_to(self._position.epoch_after(self._after(batches)))

    def _after(self, batches: int) -> Any:
        if batches < self._forgotten:
            raise RuntimeError(
                f"loader: no state after {batches} batches: the states before batch {self._forgotten} are dropped."
            )
        # If several datasets are read together, this one may have ended before the others.
        return self._points[min(batches - self._forgotten, len(self._points) - 1)]
