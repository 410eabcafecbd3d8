"""A record of a training loader's positions, for the states of a Trainer that fetches batches ahead."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from loaderkit.loader.position import Position


class History:
    """Records the loader's position (a point) after each batch since a mark. `mark` sets the mark at the next pass's start.

    A Trainer fetches batches before it trains on them, so a saved state belongs to an earlier batch than the last one yielded.
    The TrainPosition that made this History sets the mark, and asks for states.

    Args:
        position: The loader's position.
        saved: Returns the state that the DataModule saves for this loader.
        loaded: Called after Lightning has loaded a state into the loader itself.

    Attributes:
        restored: Whether the DataModule has restored the position.
    """

    def __init__(self, position: Position, saved: Callable[[], dict[str, object]], loaded: Callable[[], None]) -> None:
        self.saved, self.loaded = saved, loaded
        self.restored = False
        self._position = position
        self._points: deque[object] = deque([position.upcoming()])
        self._forgotten = 0  # batches since the mark whose points are gone
        self._first_epoch = 0  # the position's epoch at the mark
        # Whether the loader ended before the mark, in the same epoch of the Trainer. CombinedLoader tracks which loaders
        # have ended, so after a resume it must end again.
        self._ended = False
        self._at_end = False  # whether the last pass since the mark ended
        self._waiting = False  # whether no batch has begun since the mark
        self._learnt = 0  # batches trained on since the mark, when the last batch began
        self._begun = 0  # batches that began since the mark

    def mark(self, *, ended: bool = False) -> None:
        """Count batches from the start of the next pass. `ended`: the loader has already ended in this epoch of the Trainer."""
        self._position.discard_ahead()
        self._restart()
        self._first_epoch = self._position.cursor_at(self._points[0]).epoch
        self._waiting, self._learnt, self._begun = True, 0, 0
        self._ended, self._at_end = ended, False

    def begin_batch(self, learnt: int) -> None:
        """Record that a batch begins, after `learnt` batches since the mark have been trained on."""
        # Keeps one batch more: another rank may save one step earlier.
        while self._forgotten < self._learnt and len(self._points) > 1:
            self._points.popleft()
            self._forgotten += 1
        self._waiting, self._learnt = False, learnt
        self._begun += 1

    @property
    def point_after_step(self) -> object:
        """The point after the batch that is being trained on."""
        return self._point_after(self._begun)

    def state_after(self, batches: int, *, over: bool) -> dict[str, object]:
        """Return the loader's state `batches` batches after the mark; with `over`, the state at the end of that epoch."""
        point = self._point_after(batches)
        return self._position.state_at(self._position.epoch_after(point) if over else point, self._points)

    def has_ended(self, state: Mapping[str, Any]) -> bool:
        """Return whether the loader ended in this epoch of the Trainer before a state since the mark."""
        epoch: int = state["cursor"]["epoch"]
        return self._ended or epoch > self._first_epoch

    def end_epoch(self, batches: int) -> None:
        """Move to the loader's next epoch, if the Trainer's epoch used `batches` batches since the mark."""
        self._position.discard_ahead()
        self._position.go_to(self._position.epoch_after(self._point_after(batches)))

    def stop(self) -> None:
        """Return to the mark if no batch has begun since."""
        if self._waiting:
            self._rewind()

    def run(self, begin: Callable[[], Iterator[object]]) -> Iterator[object]:
        """Return the batches of a pass, and record the point after each."""
        # Lightning fetches from a loader without a length before an epoch begins, then calls iter() again.
        # CombinedLoader calls iter() after the end.
        again = self._waiting and not self._at_end
        self._at_end = False
        if again:
            self._rewind()
        return self._record(iter(()) if again and self._ended else begin())

    def _record(self, batches: Iterator[object]) -> Iterator[object]:
        for batch in batches:
            self._points.append(self._position.yielded() or self._position.point())
            yield batch
            del batch  # its memory may be reused for the next one
        self._at_end = True

    def _point_after(self, batches: int) -> object:
        """Return the point `batches` batches after the mark."""
        if batches < self._forgotten:
            raise RuntimeError(
                f"loader: no state after {batches} batches: the states before batch {self._forgotten} are dropped."
            )
        # If several datasets are read together, this one may have ended before the others.
        return self._points[min(batches - self._forgotten, len(self._points) - 1)]

    def _rewind(self) -> None:
        """Return to the mark."""
        self._position.go_to(self._points[0])
        self._restart()

    def _restart(self) -> None:
        self._points, self._forgotten = deque([self._position.upcoming()]), 0
