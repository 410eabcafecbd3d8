"""Data and steps that take their time, and a clock that tests set."""

import time
from collections.abc import Callable


class HandClock:
    """A clock that moves only when somebody sleeps by it, so that shares of time come out exactly."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


class Slow:
    """Samples that take `seconds` each, by `sleep`, and count how long they took in all."""

    def __init__(self, size: int, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self.size, self.seconds, self.sleep, self.taken = size, seconds, sleep, 0.0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.sleep(self.seconds)
        self.taken += self.seconds
        return index
