"""How long a CUDA device had nothing to do while the host waited, without waiting for the device."""

from typing import Any

import torch


class Gap:
    """The time between two points of a device's stream. Times are read when the device has passed both."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Any, end: Any) -> None:
        self._begin, self._end = begin, end

    @property
    def is_over(self) -> bool:
        """Whether the device has passed it."""
        return bool(self._end.query())

    def ns(self) -> int:
        """Return how long it was; the device has to have passed it."""
        return int(self._begin.elapsed_time(self._end) * 1e6)


class Stream:
    """Marks points of the stream on which a device computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Any:
        """Return an event: the device passes it when it has done what it was given so far."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self) -> None:
        """Wait until the device has done all."""
        torch.cuda.current_stream(self._device).synchronize()


def stream_of(device: torch.device | str | None) -> Stream | None:
    """Return the stream that a device computes on; None if it computes as the host asks for it.

    Args:
        device: None is the CUDA device, if the process uses one.
    """
    if device is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        device = "cuda"
    found = torch.device(device or "cpu")
    return Stream(found) if found.type == "cuda" else None
