"""The monitor for a loop of one's own."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import torch

from loaderkit.monitor.clock import StepClock
from loaderkit.monitor.device import stream_of
from loaderkit.monitor.remedy import remedy
from loaderkit.monitor.waits import Sums, Waits, WaitSummary
from loaderkit.system.world import World

T = TypeVar("T")


class DataWaitMonitor:
    """Measures the share of each training step that is spent waiting for data.

    A step is from one request for a batch to the next; the time within the request is
    waiting. What moves a batch to the device is part of the step, unless the loader does
    it. Time between epochs and within `pause()` does not count.

    CUDA works behind the host, which therefore may wait where the device does not.
    There a wait counts for as long as the device had nothing left to do, and at most
    for as long as the host waited. Events on its stream tell; nothing waits for them.
    On other devices the host's time is taken as it is.

    Each process measures its own waits; rank 0 warns.

    Args:
        window: Steps of the moving window.
        warmup: First steps that are left out: workers start, kernels are compiled.
        warn_above: The share from which on a warning, given once, names the remedy; None gives none.
        device: Where the steps compute; None is CUDA, if the process uses it when `watch` begins.

    Raises:
        ValueError: If a setting is out of range.
    """

    def __init__(
        self,
        *,
        window: int = 100,
        warmup: int = 10,
        warn_above: float | None = 0.1,
        device: torch.device | str | None = None,
    ) -> None:
        if window < 1:
            raise ValueError(f"DataWaitMonitor: window is {window}, wanted at least 1 step.")
        if warmup < 0:
            raise ValueError(f"DataWaitMonitor: warmup is {warmup}, wanted at least 0 steps.")
        if warn_above is not None and not 0 <= warn_above <= 1:
            raise ValueError(f"DataWaitMonitor: warn_above is {warn_above}, wanted a share from 0 to 1, or None.")
        self.device = device
        self.loader: Any = None  # what is watched, for the remedy
        self._window, self._warn_above, self._warned = window, warn_above, False
        self._waits = Waits(window, warmup)
        self.clock = StepClock(self._add)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clock.finish()

    def watch(self, loader: Iterable[T]) -> "Watched[T]":
        """Return the same batches, measured; each `iter()` is an epoch."""
        return Watched(self, loader)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out what is done within, such as a validation between two steps."""
        self.clock.suspend()
        try:
            yield
        finally:
            self.clock.resume()

    @property
    def share(self) -> float:
        """The share of waiting, from 0 to 1, in the moving window; NaN before a step was measured."""
        return self._waits.window.share

    @property
    def course(self) -> list[Sums]:
        """The steps so far, in at most 1,024 stretches of equal length."""
        return self._waits.course

    def summary(self) -> WaitSummary:
        """Return the mean of all steps that were measured, and what would help if they waited too long."""
        self.clock.finish()
        mean = self._waits.whole.summary()
        worth_it = self._warn_above is not None and mean.share > self._warn_above
        return self._waits.whole.summary(remedy(mean, self.loader) if worth_it else "")

    def plot(self, path: str | Path) -> None:
        """Draw the steps' times and their waits as a PNG; needs matplotlib.

        Raises:
            ValueError: If no steps were measured.
        """
        from loaderkit.monitor.picture import draw  # matplotlib is needed only here

        self.clock.finish()
        if not self.course:
            raise ValueError(
                f"DataWaitMonitor: no steps to plot: {self._waits.skipped} were left out as warm-up, and none came after. "
                "Run more steps, or give warmup=0."
            )
        draw(path, self.course, self._waits.skipped, self.summary())

    def begin(self, loader: Any) -> None:
        """Take note of where the following steps get their batches."""
        self.loader = loader
        self.clock.stream = stream_of(self.device)

    def _add(self, step: Sums) -> None:
        self._waits.add(step)
        if self._warned or self._warn_above is None:
            return
        window = self._waits.window
        if window.steps == self._window and window.share > self._warn_above:
            self._warned = True
            if World.detect().rank == 0:
                mean = window.summary()
                warnings.warn(
                    f"DataWaitMonitor: {window.summary(remedy(mean, self.loader))}", UserWarning, stacklevel=2
                )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"loader": None, "clock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.clock = StepClock(self._add)


class Watched(Generic[T]):
    """A loader whose batches are measured."""

    def __init__(self, monitor: DataWaitMonitor, loader: Iterable[T]) -> None:
        self._monitor, self._loader = monitor, loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # or the TypeError that says so

    def __iter__(self) -> Iterator[T]:
        self._monitor.begin(self._loader)
        clock = self._monitor.clock
        batches = iter(self._loader)
        try:
            while True:
                clock.begin_wait()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                clock.end_wait()
                yield batch
                del batch  # its memory may be wanted for another one
        finally:
            clock.drop_step()
