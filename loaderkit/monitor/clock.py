"""Measure the times of steps and of waits for data in them, on the host and on a CUDA device, which lags behind it."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from loaderkit.monitor.waits import Sums

_MAX_OPEN = 256  # steps that the device may be behind the host


class _Wait(NamedTuple):
    """A wait: how long the host waited, and the CUDA events recorded before and after the wait."""

    host_ns: int
    begin: Any
    end: Any


class Stream:
    """Marks points on the stream on which a CUDA device computes, without waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """Return a CUDA event that happens when the device has done all work queued so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types for it
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self) -> None:
        """Block the host until the device has done all work queued so far."""
        torch.cuda.current_stream(self._device).synchronize()


def stream_of(device: torch.device | str | None) -> Stream | None:
    """Return the `Stream` of a CUDA device, else None. The default is CUDA if this process has initialised it."""
    if device is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types for it
        device = "cuda"
    found = torch.device(device or "cpu")
    return Stream(found) if found.type == "cuda" else None


class StepClock:
    """Measures steps. Call `begin_wait`, `end_wait`, then `end_step` or the next `begin_wait`.

    A step lasts from one request for a batch to the next. The time inside the request is waiting. With a `stream`, a
    wait counts only for as long as the device had no work. Such a step is handed to `add` later, when the device has
    passed the step's waits.
    """

    def __init__(self, add: Callable[[Sums], None]) -> None:
        self.stream: Stream | None = None
        self.now_ns: Callable[[], int] = time.perf_counter_ns
        self._add = add
        self._begun_ns: int | None = None  # when the step began
        self._wait_begun_ns = self._wait_ns = 0
        self._mark: torch.cuda.Event | None = None
        self._waits: list[_Wait] = []
        self._open: deque[tuple[Sums, list[_Wait]]] = deque()  # steps that the device has not passed
        self._suspended_ns: int | None = None

    def begin_wait(self, *, same_step: bool = False) -> None:
        """Note a request for a batch. It ends the current step and begins the next, unless `same_step`."""
        now_ns = self.now_ns()
        if not same_step:
            self._close(now_ns)
        if self._begun_ns is None:
            self._begun_ns = now_ns
        self._wait_begun_ns = now_ns
        if self.stream is not None:
            self._mark = self.stream.mark()

    def end_wait(self) -> None:
        """Note that the batch has arrived, or that there is none."""
        if self._begun_ns is None:
            return
        wait_ns = self.now_ns() - self._wait_begun_ns
        self._wait_ns += wait_ns
        if self.stream is not None and self._mark is not None:
            self._waits.append(_Wait(wait_ns, self._mark, self.stream.mark()))
            self._mark = None

    def end_step(self) -> None:
        """End the step if no request for a batch follows at once."""
        self._close(self.now_ns())

    def drop_step(self) -> None:
        """Discard the current step."""
        self._begun_ns, self._wait_ns, self._waits, self._mark = None, 0, [], None

    def suspend(self) -> None:
        """Stop counting time until `resume`."""
        self._suspended_ns = self.now_ns()

    def resume(self) -> None:
        """Count time again."""
        if self._begun_ns is not None and self._suspended_ns is not None:
            self._begun_ns += self.now_ns() - self._suspended_ns
        self._suspended_ns = None

    def finish(self) -> None:
        """Wait for the device, and add the remaining steps."""
        if self._open and self.stream is not None:
            self.stream.wait()
            self._settle()

    def _close(self, now_ns: int) -> None:
        if self._begun_ns is None:
            return
        step = Sums(1, now_ns - self._begun_ns, self._wait_ns, self._wait_ns)
        waits = self._waits
        self.drop_step()
        if not waits:
            self._add(step)
            return
        if len(self._open) < _MAX_OPEN:  # otherwise drop the step: the device is far behind and does not wait
            self._open.append((step, waits))
        self._settle()

    def _settle(self) -> None:
        """Add the steps whose waits the device has passed, in order."""
        while self._open and self._open[0][1][-1].end.query():
            step, waits = self._open.popleft()
            step.wait_ns = sum(min(wait.host_ns, int(wait.begin.elapsed_time(wait.end) * 1e6)) for wait in waits)
            self._add(step)
