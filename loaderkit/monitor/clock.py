"""Takes the time of steps and of the waits within them."""

import time
from collections import deque
from collections.abc import Callable

from loaderkit.monitor.device import Gap, Stream
from loaderkit.monitor.waits import Sums

_MAX_OPEN = 256  # steps that the device may be behind


class StepClock:
    """Takes the time of steps: `begin_wait`, `end_wait`, and `end_step` or another `begin_wait`.

    A step is from one request for a batch to the next one, of which the time within
    the request is waiting. With a stream only the time counts for which the device
    had nothing to do, and a step is added when the device has passed its waits.

    Args:
        add: Takes each step.
        now_ns: The host's clock.
    """

    def __init__(self, add: Callable[[Sums], None], now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.stream: Stream | None = None
        self._add, self._now_ns = add, now_ns
        self._begun_ns: int | None = None  # of the step
        self._wait_begun_ns = self._wait_ns = 0
        self._mark: object = None
        self._gaps: list[tuple[int, Gap]] = []
        self._open: deque[tuple[Sums, list[tuple[int, Gap]]]] = deque()
        self._suspended_ns: int | None = None

    def begin_wait(self, *, same_step: bool = False) -> None:
        """A batch is asked for; this ends the step before, unless it is for the same one."""
        now_ns = self._now_ns()
        if not same_step:
            self._close(now_ns)
        if self._begun_ns is None:
            self._begun_ns = now_ns
        self._wait_begun_ns = now_ns
        if self.stream is not None:
            self._mark = self.stream.mark()

    def end_wait(self) -> None:
        """The batch is there, or there is none."""
        if self._begun_ns is None:
            return
        wait_ns = self._now_ns() - self._wait_begun_ns
        self._wait_ns += wait_ns
        if self.stream is not None and self._mark is not None:
            self._gaps.append((wait_ns, Gap(self._mark, self.stream.mark())))
            self._mark = None

    def end_step(self) -> None:
        """The step is over, and the next one does not follow at once."""
        self._close(self._now_ns())

    def drop_step(self) -> None:
        """The step does not count."""
        self._begun_ns, self._wait_ns, self._gaps, self._mark = None, 0, [], None

    def suspend(self) -> None:
        """What follows is not part of the step."""
        self._suspended_ns = self._now_ns()

    def resume(self) -> None:
        """The step goes on."""
        if self._begun_ns is not None and self._suspended_ns is not None:
            self._begun_ns += self._now_ns() - self._suspended_ns
        self._suspended_ns = None

    def finish(self) -> None:
        """Add what the device has not passed yet, when it has."""
        if self._open and self.stream is not None:
            self.stream.wait()
            self._settle()

    def _close(self, now_ns: int) -> None:
        if self._begun_ns is None:
            return
        step = Sums(1, now_ns - self._begun_ns, self._wait_ns, self._wait_ns)
        gaps = self._gaps
        self.drop_step()
        if not gaps:
            self._add(step)
            return
        if len(self._open) < _MAX_OPEN:  # else it is left out: the device is far behind, and does not wait
            self._open.append((step, gaps))
        self._settle()

    def _settle(self) -> None:
        """Add the steps whose waits the device has passed, in order."""
        while self._open and self._open[0][1][-1][1].is_over:
            step, gaps = self._open.popleft()
            step.wait_ns = sum(min(wait_ns, gap.ns()) for wait_ns, gap in gaps)
            self._add(step)
