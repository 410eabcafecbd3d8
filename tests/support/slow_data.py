"""What several tests share: the monitor's share is the share of waiting, whatever comes between the steps."""

import time


class Slow:
    """Samples that take their time, and write down how long they took."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds, self.taken = size, seconds, 0.0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.taken += slept(self.seconds)
        return index


def slept(seconds: float) -> float:
    """Sleep, and return how long that took on this machine."""
    start = time.perf_counter()
    if seconds:
        time.sleep(seconds)
    return time.perf_counter() - start
