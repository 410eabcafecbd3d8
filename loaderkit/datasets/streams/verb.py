"""The interface of verbs, which make one stream from another: order, lanes, and valid places."""

from collections.abc import Sequence
from typing import Protocol

from loaderkit.datasets.bad_samples import BadSamples
from loaderkit.datasets.streams.lane import Lane, LaneSpec, Place


class Below(Protocol):
    """The stream that a verb is applied to."""

    lanes: int
    seed: int

    @property
    def shares(self) -> int:
        """How many lanes can have something to read."""

    def open(self, lane: int, place: Place, path: Sequence[int] = (), policy: BadSamples = ...) -> Lane:
        """Read a lane from a place on."""

    def flaw(self, lane: int, place: Sequence[int]) -> str | None:
        """Return in words what a state's place should be instead; None if it is valid."""


class Verb(Protocol):
    """Makes one stream from another. Its lanes read that stream's lanes, whose places they append to their own."""

    def __str__(self) -> str:
        """Return the verb as a call, such as "take(3)"."""

    def order(self) -> str:
        """Return a name for the verb's order, with its version and all settings that the order depends on."""

    def lane(self, below: Below, spec: LaneSpec) -> Lane:
        """Read a lane from a place on."""

    def flaw(self, below: Below, lane: int, place: Place) -> str | None:
        """Return in words what a state's place should be instead; None if the lane can be at this place."""


def flaw_below(below: Below, lane: int, cycle: int, place: Sequence[int]) -> str | None:
    """Return in words what a place in the stream below should be instead; None if it is valid."""
    if flaw := below.flaw(lane, place):
        return f"{flaw} (in the stream below)"
    return None if place[0] == cycle else f"cycle {cycle} in the stream below too"
