"""Sums of the steps' times: over a moving window, over all steps, and over at most 1,024 groups of steps."""

import math
from collections import deque
from dataclasses import dataclass

_MAX_BINS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitSummary:
    """The mean of the measured steps.

    Args:
        steps: The number of measured steps.
        step_s: Mean duration of a step in seconds.
        wait_s: Mean time of a step spent waiting for data, in seconds.
        host_wait_s: Mean time of a step that the host waited, in seconds. On CUDA it may exceed `wait_s`: the device
            may have had work meanwhile.
        remedy: Advice; empty if the share of waiting is small.
        downloads: What the loader has downloaded from remote shards, in words; empty without remote shards.
    """

    steps: int
    step_s: float
    wait_s: float
    host_wait_s: float
    remedy: str = ""
    downloads: str = ""

    @property
    def share(self) -> float:
        """The share of the mean step spent waiting, from 0 to 1; NaN if nothing was measured."""
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
    """The sums of some steps' times, in nanoseconds."""

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
        """The share of time spent waiting, from 0 to 1; NaN without steps."""
        return self.wait_ns / self.step_ns if self.step_ns else math.nan

    def summary(self, remedy: str = "", downloads: str = "") -> WaitSummary:
        """Return the means of these sums over their steps."""
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
    """Sums of the steps' times: over all steps after the first `warmup`, and over the latest `window` of those."""

    def __init__(self, window: int, warmup: int) -> None:
        self.window, self.whole = Sums(), Sums()
        self.course: list[Sums] = []  # sums over groups of equally many steps; the last group may be shorter
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
