"""How many steps an epoch has from one of its windows on, and which window a step is in."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from loaderkit.sampling.by_length.segments import Segment
from loaderkit.system.arrays import Int64Array


class Windows(Protocol):
    """What is asked of a plan by length."""

    window: int

    def size(self, epoch: int) -> int:
        """Return the number of samples of an epoch."""

    def steps_of(self, samples: int, *, last: bool) -> int | None:
        """Return the number of steps of a window, if it does not depend on the lengths."""

    def segments(self, epoch: int, start: int = 0) -> Iterator[Segment]:
        """Yield the segments of an epoch from `start` on."""


class StepCounts:
    """Counts the steps of whole windows.

    If lengths decide, it plans the rest of the epoch once, and remembers it.

    Args:
        windows: The plan.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._counted: dict[tuple[int, int], tuple[Int64Array, Int64Array]] = {}

    def after(self, epoch: int, start: int) -> int:
        """Return the number of steps of the windows from the one that begins at `start`."""
        if (regular := self._regular(epoch, start)) is not None:
            windows, each, last = regular
            return windows * each + last
        starts, before = self._count(epoch, start)
        return int(before[-1] - before[np.searchsorted(starts, start)])

    def skip(self, epoch: int, start: int, steps: int) -> tuple[int, int]:
        """Return the start of the window that is `steps` steps after the window at `start`, and the steps left inside it."""
        if (regular := self._regular(epoch, start)) is not None:
            count, each, _ = regular
            windows = min(count, steps // each) if each else 0
            return start + windows * self._windows.window, steps - windows * each
        starts, before = self._count(epoch, start)
        steps += int(before[np.searchsorted(starts, start)])
        place = min(int(np.searchsorted(before, steps, side="right")) - 1, len(starts) - 1)
        return int(starts[place]), steps - int(before[place])

    def _regular(self, epoch: int, start: int) -> tuple[int, int, int] | None:
        """Return how many full windows follow, the steps of each, and those of the last window; None if lengths matter."""
        window, size = self._windows.window, self._windows.size(epoch)
        each = self._windows.steps_of(window, last=False)
        if each is None:
            return None
        windows = max(0, max(1, size // window) - 1 - start // window) if start < size else 0
        left = size - start - windows * window
        last = self._windows.steps_of(left, last=True) if left > 0 else 0
        return windows, each, last or 0

    def _count(self, epoch: int, start: int) -> tuple[Int64Array, Int64Array]:
        """Return the windows' starts (W + 1,), one of them `start`, and the number of steps before each (W + 1,)."""
        for (counted, _), (starts, before) in self._counted.items():
            if counted == epoch and starts[np.searchsorted(starts, start)] == start:
                return starts, before
        segments = [(segment.end, len(segment.steps)) for segment in self._windows.segments(epoch, start)]
        ends, steps = np.array(segments, dtype=np.int64).reshape(-1, 2).T
        found = np.append(start, ends), np.append(0, np.cumsum(steps))
        kept = {key: value for key, value in self._counted.items() if key[0] == epoch}
        self._counted = kept | {(epoch, start): found}
        return found
