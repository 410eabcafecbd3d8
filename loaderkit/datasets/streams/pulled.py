"""The base of lanes that read other lanes."""

from abc import ABC, abstractmethod
from collections import deque

from loaderkit.datasets.streams.lane import Place
from loaderkit.datasets.streams.samples import PendingSample


class PulledLane(ABC):
    """A lane that keeps the samples read by `fill` until `take` returns them. A subclass defines how to read."""

    def __init__(self) -> None:
        self._ahead: deque[tuple[PendingSample, Place]] = deque()  # each with its place

    @property
    def place(self) -> Place:
        return self._ahead[0][1] if self._ahead else self._source_place()

    def fill(self, count: int) -> bool:
        while len(self._ahead) < count:
            place = self._source_place()
            pulled = self._pull(1)
            if not pulled:
                return False
            self._ahead.append((pulled[0], place))
        return True

    def take(self, count: int) -> list[PendingSample]:
        pending = [self._ahead.popleft()[0] for _ in range(min(count, len(self._ahead)))]
        while len(pending) < count and (pulled := self._pull(count - len(pending))):
            pending += pulled
        return pending

    @abstractmethod
    def _source_place(self) -> Place:
        """Return the place of the next sample that `_pull` returns."""

    @abstractmethod
    def _pull(self, count: int) -> list[PendingSample]:
        """Return the next samples, 1 to `count`; an empty list at the end."""
