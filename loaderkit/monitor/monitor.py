"""Measures how long a training loop waits for data."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import torch

from loaderkit.monitor.clock import StepClock, stream_of
from loaderkit.monitor.remedy import remedy
from loaderkit.monitor.waits import Sums, Waits, WaitSummary
from loaderkit.system.world import World

T = TypeVar("T")


class DataWaitMonitor:
    """Measures which share of each training step is spent waiting for data.

    A step lasts from one request for a batch to the next. The time inside the request is waiting. Copying a batch to the
    device is part of the step, unless the loader does it. Time between epochs and inside `pause()` does not count.

    On CUDA the host runs ahead of the device, so the host may wait while the device still has work. There, a wait
    counts only for as long as the device had no work. CUDA events measure that without synchronising. On other devices
    the whole time that the host waits counts.

    For remote shards, the summary also has what the loader has downloaded: bytes per second, cache hits and shards
    ahead.

    Each process measures its own waits; only rank 0 warns.

    Args:
        window: Number of steps in the moving window.
        warmup: Number of first steps that are left out, while workers start and kernels compile.
        warn_above: The share of waiting above which the monitor warns once, with advice; None never warns.
        device: Where the steps compute. None means CUDA if the process has initialised it when an epoch begins.

    Raises:
        ValueError: If a setting is out of range.

    Examples:
        >>> loader = lk.Loader(lk.ArrayDataset(torch.arange(64.0)), 4)
        >>> with lk.DataWaitMonitor(warmup=2, warn_above=None) as monitor:
        ...     for batch in monitor.watch(loader):
        ...         loss = batch.square().mean()
        >>> monitor.summary().steps
        14
        >>> 0 <= monitor.share <= 1
        True
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
        self.loader: Any = None  # the watched loader, for advice
        self._window, self._warn_above, self._warned = window, warn_above, False
        self._waits = Waits(window, warmup)
        self.clock = StepClock(self._add)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clock.finish()

    def watch(self, loader: Iterable[T]) -> "Watched[T]":
        """Return an iterable over the loader's batches that measures the waits. Each `iter()` is an epoch."""
        return Watched(self, loader)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out the time inside, such as a validation between two steps."""
        self.clock.suspend()
        try:
            yield
        finally:
            self.clock.resume()

    @property
    def share(self) -> float:
        """The share of time spent waiting in the moving window, from 0 to 1; NaN before the first measured step."""
        return self._waits.window.share

    @property
    def downloads(self) -> Any:
        """What the watched loader has downloaded, a `Downloads`; None without remote data."""
        return getattr(self.loader, "downloads", None)

    @property
    def course(self) -> list[Sums]:
        """Sums over groups of all measured steps, in order: at most 1,024 groups of equally many steps."""
        return self._waits.course

    def summary(self) -> WaitSummary:
        """Return the mean of all measured steps, with advice if their share of waiting is above `warn_above`."""
        self.clock.finish()
        mean = self._waits.whole.summary()
        worth_it = self._warn_above is not None and mean.share > self._warn_above
        downloads = self.downloads
        return self._waits.whole.summary(
            remedy(mean, self.loader) if worth_it else "", "" if downloads is None else str(downloads)
        )

    def plot(self, path: str | Path) -> None:
        """Draw the steps' times and waits as a PNG file; needs matplotlib.

        Raises:
            ValueError: If no steps were measured.
        """
        from loaderkit.monitor.picture import draw  # matplotlib is needed only here

        self.clock.finish()
        if not self.course:
            raise ValueError(
                f"DataWaitMonitor: no steps to plot: {self._waits.skipped} were left out as warm-up, and none followed. "
                "Run more steps, or set warmup=0."
            )
        draw(path, self.course, self._waits.skipped, self.summary())

    def begin(self, loader: Any) -> None:
        """Tell the monitor which loader the following steps read."""
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

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"loader": None, "clock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.clock = StepClock(self._add)


class Watched(Generic[T]):
    """An iterable over a loader's batches that measures the waits."""

    def __init__(self, monitor: DataWaitMonitor, loader: Iterable[T]) -> None:
        self._monitor, self._loader = monitor, loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises TypeError if there is no length

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
                del batch  # its memory may be reused for the next one
        finally:
            clock.drop_step()
