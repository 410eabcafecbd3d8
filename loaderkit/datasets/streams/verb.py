"""The base of streams that are made of another one: their order, how a lane is read, and which places a state may have."""

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
        """The most lanes that have something to read."""

    def open(self, lane: int, place: Place, path: Sequence[int] = (), policy: BadSamples = ...) -> Lane:
        """Read a lane from a place on."""

    def flaw(self, lane: int, place: Sequence[int]) -> str | None:
        """Say what a place in a state should be instead."""


class Verb(Protocol):
    """Makes one stream of another. Its lanes read the lanes of that stream, and keep their places in their own."""

    def __str__(self) -> str:
        """Return the verb as it is called."""

    def order(self) -> str:
        """Return the verb, with its version and all settings that the order depends on."""

    def lane(self, below: Below, spec: LaneSpec) -> Lane:
        """Read a lane from a place on."""

    def flaw(self, below: Below, lane: int, place: Place) -> str | None:
        """Say what a place in a state should be instead; None if the lane can be there."""


def flaw_below(below: Below, lane: int, cycle: int, place: Sequence[int]) -> str | None:
    """Say what a place in the stream below should be instead."""
    if flaw := below.flaw(lane, place):
        return f"{flaw} (in the stream below)"
    return None if place[0] == cycle else f"cycle {cycle} in the stream below too"
