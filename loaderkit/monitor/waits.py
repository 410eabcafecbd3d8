"""Sums of the steps' times: over a moving window, over all steps, and over a bounded number of groups."""

import math
from collections import deque
from dataclasses import dataclass

_MAX_BINS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitSummary:
    """The mean of the measured steps.

    Args:
        steps: The number of measured steps.
        step_s: The mean step in seconds.
        wait_s: Seconds of it that were spent waiting for data.
        host_wait_s: Seconds of it that the host waited. On CUDA it may be more than `wait_s`: the device still had work.
        remedy: What would help; empty if the share of waiting is small.
        downloads: What the loader has downloaded from remote shards; empty if nothing.
    """

    steps: int
    step_s: float
    wait_s: float
    host_wait_s: float
    remedy: str = ""
    downloads: str = ""

    @property
    def share(self) -> float:
        """The share of the step that is waiting; NaN if nothing was measured."""
        return self.wait_s / self.step_s if self.step_s else math.nan

    def __str__(self) -> str:
        if not self.steps:
            return "no steps were measured"
        said = (
            f"{self.share:.1%} of each step is spent waiting for data: {self.wait_s * 1e3:.3g} of "
            f"{self.step_s * 1e3:.3g} ms, the mean of {self.steps:,} steps"
        )
        said += f". Downloads: {self.downloads}" if self.downloads else ""
        return f"{said}. {self.remedy}" if self.remedy else said


@dataclass(slots=True)
class Sums:
    """The sum of some steps' times."""

    steps: int = 0
    step_ns: int = 0
    wait_ns: int = 0
    host_wait_ns: int = 0

    def add(self, other: "Sums", sign: int = 1) -> None:
        """Add other steps, or subtract them if `sign` is -1."""
        self.steps += sign * other.steps
        self.step_ns += sign * other.step_ns
        self.wait_ns += sign * other.wait_ns
        self.host_wait_ns += sign * other.host_wait_ns

    @property
    def share(self) -> float:
        """The share of waiting; NaN without steps."""
        return self.wait_ns / self.step_ns if self.step_ns else math.nan

    def summary(self, remedy: str = "", downloads: str = "") -> WaitSummary:
        """Return the mean step."""
        unit = 1e-9 / max(1, self.steps)
        return WaitSummary(
            steps=self.steps,
            step_s=self.step_ns * unit,
            wait_s=self.wait_ns * unit,
            host_wait_s=self.host_wait_ns * unit,
            remedy=remedy,
            downloads=downloads,
        )


class Waits:
    """Adds up all steps after the first `warmup`, and the last `window` of them."""

    def __init__(self, window: int, warmup: int) -> None:
        self.window, self.whole = Sums(), Sums()
        self.course: list[Sums] = []  # groups of equally many steps, except the last
        self.skipped = 0
        self._warmup, self._size = warmup, window
        self._last: deque[Sums] = deque()
        self._bin_steps = 1

    def add(self, step: Sums) -> None:
        """Add a step."""
        if self.skipped < self._warmup:
            self.skipped += 1
            return
        self.whole.add(step)
        self.window.add(step)
        self._last.append(step)
        if len(self._last) > self._size:
            self.window.add(self._last.popleft(), -1)
        if not self.course or self.course[-1].steps == self._bin_steps:
            if len(self.course) == _MAX_BINS:
                for first, second in zip(self.course[::2], self.course[1::2], strict=True):
                    first.add(second)
                del self.course[1::2]
                self._bin_steps *= 2
            self.course.append(Sums())
        self.course[-1].add(step)
