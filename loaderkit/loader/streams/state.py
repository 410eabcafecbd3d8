"""The state of a stream: where each lane stands, over all ranks."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loaderkit.datasets.streams.lane import Place

STREAM_STATE_VERSION = 1
_KEYS = {"version", "stream", "cursor", "turns", "lanes", "missing"}


@dataclass(frozen=True, kw_only=True)
class StreamCursor:
    """Where the ranks of a run stand in a stream, between two batches.

    Args:
        epoch: Of the loader.
        batches: Yielded in it, by each rank.
        bad: Samples of it that each rank has left out.
        turns: Of each rank, which of its lanes comes next; rank r has the lanes r, r + ranks, ...
        lanes: Where each stands; None where its rank could not be asked. None at all: at
            the epoch's start.
    """

    epoch: int = 0
    batches: int = 0
    bad: Sequence[int] = ()
    turns: Sequence[int | None] = field(default=(0,))
    lanes: Sequence[Any] = ()

    @property
    def missing(self) -> list[int]:
        """The ranks of which nothing is known."""
        return [rank for rank, turn in enumerate(self.turns) if turn is None]


class RankCursor(NamedTuple):
    """Where one rank stands, between two batches."""

    origin: StreamCursor  # where all ranks stood when they were put somewhere last
    since: int  # batches that this rank has yielded from there
    epoch: int
    batches: int
    turn: int
    places: tuple[Any, ...]  # of the rank's lanes
    bad: int = 0  # samples of the epoch that the rank has left out

    @property
    def point(self) -> str:
        """Name the point of the run, the same on all ranks."""
        origin = json.dumps(pack_cursor(self.origin, {}))
        digest = hashlib.blake2b(origin.encode(), digest_size=12).hexdigest()
        return f"{digest}/{self.since}/{self.epoch}/{self.batches}"

    @property
    def value(self) -> str:
        """Tell the other ranks what they don't know."""
        return json.dumps({"turn": self.turn, "lanes": self.places, "bad": self.bad})


def join_ranks(
    standing: RankCursor, values: Sequence[str | None], count: int, place: Callable[..., Any] = Place
) -> StreamCursor:
    """Put together where all ranks stand.

    Args:
        standing: Of one rank.
        values: Of all of them; None where one could not be asked.
        count: Of lanes.
        place: Makes one of its parts.
    """
    lanes: list[Any] = [None] * count
    turns: list[int | None] = [None] * len(values)
    bad = [0] * len(values)
    for rank, value in enumerate(values):
        if value is not None:
            part = json.loads(value)
            bad[rank] = part["bad"]
            turns[rank], lanes[rank :: len(values)] = part["turn"], [place(*parts) for parts in part["lanes"]]
    return StreamCursor(epoch=standing.epoch, batches=standing.batches, bad=bad, turns=turns, lanes=lanes)


def pack_cursor(position: StreamCursor, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a position into a dict of plain ints, strings and lists: some 30 bytes a lane."""
    bad = {"bad": list(position.bad)} if any(position.bad) else {}
    return {
        "version": STREAM_STATE_VERSION,
        "stream": dict(identity),
        "cursor": {"epoch": position.epoch, "batches": position.batches, **bad},
        "turns": list(position.turns),
        "lanes": [None if place is None else list(place) for place in position.lanes],
        "missing": position.missing,
    }


def unpack_cursor(
    state: Mapping[str, Any], identity: Mapping[str, Any], place: Callable[..., Any] = Place
) -> StreamCursor:
    """Check that a state is whole and belongs to this stream, and return its position.

    Raises:
        ValueError: If it is not a stream's state, was written by another
            version, belongs to another stream, order or seed, or misses a rank.
    """
    _check_form(state)
    saved, cursor = state["stream"], state["cursor"]
    for what, found in identity.items():
        wanted = saved.get(what)
        if found != wanted:
            raise ValueError(
                f"cannot resume: the state is for {what} {wanted!r}, this loader has {found!r}. "
                f"Give the loader that {what} again, or start a new epoch: loader.seek(epoch={cursor['epoch'] + 1})."
            )
    if state["missing"]:
        names = ", ".join(map(str, state["missing"]))
        raise ValueError(
            f"cannot resume: the state misses rank {names} of {len(state['turns'])}. All ranks have to call state_dict() "
            "at the same batch, and to reach each other through torch.distributed or Loader(store=...). "
            "Merge the states that each rank saved by loaderkit.datasets.streams.merge_states, or start a new epoch: "
            f"loader.seek(epoch={cursor['epoch'] + 1})."
        )
    return _position(state, place)


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make a whole state of those that the ranks of a run saved at the same batch.

    Raises:
        ValueError: If they are not of one run at one batch.
    """
    if not states:
        raise ValueError("stream: no states to merge, wanted those of all ranks.")
    for state in states:
        _check_form(state)
    positions = [_position(state, _plain) for state in states]
    first = positions[0]
    turns, lanes = list(first.turns), list(first.lanes)
    for state, position in zip(states, positions, strict=True):
        for what, found, wanted in (
            ("stream", state["stream"], states[0]["stream"]),
            ("cursor", {**state["cursor"], "bad": ()}, {**states[0]["cursor"], "bad": ()}),
            ("ranks", len(position.turns), len(turns)),
        ):
            if found != wanted:
                raise ValueError(
                    f"stream: cannot merge states of different runs or batches: {what} {found} and {wanted}."
                )
        turns = [old if new is None else new for old, new in zip(turns, position.turns, strict=True)]
        lanes = [old if new is None else new for old, new in zip(lanes, position.lanes, strict=True)]
    bad = [max(found) for found in zip(*(position.bad for position in positions if position.bad), strict=True)]
    whole = dataclasses.replace(first, turns=turns, lanes=lanes, bad=bad)  # each rank knows its own, and none of others
    return pack_cursor(whole, states[0]["stream"])


def _plain(*parts: Any) -> Any:
    return parts


def _position(state: Mapping[str, Any], place: Callable[..., Any]) -> StreamCursor:
    cursor = state["cursor"]
    lanes = [None if parts is None else place(*parts) for parts in state["lanes"]]
    turns, bad = list(state["turns"]), cursor.get("bad", ())
    bad = (bad,) if isinstance(bad, int) else bad  # as one rank wrote it before
    return StreamCursor(epoch=cursor["epoch"], batches=cursor["batches"], bad=bad, turns=turns, lanes=lanes)


def _check_form(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping) or not set(state) >= _KEYS:
        found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"cannot resume: this is not the state of a Loader of a stream (found {found}, wanted the keys {sorted(_KEYS)}). "
            "Pass what loader.state_dict() returned."
        )
    if state["version"] != STREAM_STATE_VERSION:
        raise ValueError(
            f"cannot resume: the state has version {state['version']}, this loaderkit reads version "
            f"{STREAM_STATE_VERSION}. Install the loaderkit that wrote it, or start a new epoch: loader.seek(epoch=...)."
        )
