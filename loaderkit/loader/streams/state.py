"""The state of a stream: where each lane is, over all ranks."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from loaderkit.datasets.streams.lane import Place
from loaderkit.system.state import (
    COUNT,
    EPOCH,
    NAMED_VALUES,
    Form,
    Rule,
    StateError,
    damaged,
    lists_of,
    open_state,
    seal,
)

_WAY_OUT = "start a new epoch: loader.seek(epoch=...)"
_ANSWER = Rule(f"{COUNT.wanted}, or None", lambda value: value is None or COUNT.holds(value))
_LANE = Rule("a list, or None", lambda value: value is None or isinstance(value, list | tuple))
_FORM: Form = {
    "stream": NAMED_VALUES,
    "cursor": {"epoch": EPOCH, "batches": COUNT, "bad": lists_of(COUNT)},
    "turns": lists_of(_ANSWER),
    "lanes": lists_of(_LANE),
    "missing": lists_of(COUNT),
}
# Takes a lane and a place in it. Returns what the place should be, or None if the place is valid.
Flaw = Callable[[int, Sequence[object]], str | None]


@dataclass(frozen=True, kw_only=True)
class StreamCursor:
    """Where all ranks of a run are in a stream, between two batches. Rank r of R has the lanes r, r + R, ..."""

    epoch: int = 0
    batches: int = 0  # of the epoch, that each rank has yielded
    bad: Sequence[int] = ()  # samples of the epoch that each rank has left out
    turns: Sequence[int | None] = (0,)  # for each rank, which of its lanes comes next; None if it did not answer
    lanes: Sequence[Any] = ()  # a place for each lane; None if its rank did not answer. Empty at the epoch's start

    @property
    def missing(self) -> list[int]:
        """The ranks that did not answer."""
        return [rank for rank, turn in enumerate(self.turns) if turn is None]


class LanePlace(Protocol):
    """Where one lane is."""

    @property
    def cycle(self) -> int:
        """How often the lane has been read to its end."""


class RankCursor(NamedTuple):
    """Where one rank is, between two batches."""

    origin: StreamCursor  # where all ranks were after the last load or seek
    since: int  # batches that this rank has yielded from there
    epoch: int
    batches: int
    turn: int
    places: tuple[LanePlace, ...]  # of the rank's lanes
    bad: int = 0  # samples of the epoch that the rank has left out

    @property
    def name(self) -> str:
        """A name for this point of the run, the same on all ranks."""
        origin = json.dumps(list(vars(self.origin).values()))
        digest = hashlib.blake2b(origin.encode(), digest_size=12).hexdigest()
        return f"{digest}/{self.since}/{self.epoch}/{self.batches}"

    @property
    def value(self) -> str:
        """What only this rank knows, as JSON."""
        return json.dumps({"turn": self.turn, "lanes": self.places, "bad": self.bad})


def join_ranks(
    cursor: RankCursor, values: Sequence[str | None], count: int, place: Callable[..., object] = Place
) -> StreamCursor:
    """Combine one rank's cursor with the `RankCursor.value` of each rank, over `count` lanes.

    The value of a rank that did not answer is None.
    """
    lanes: list[object] = [None] * count
    turns: list[int | None] = [None] * len(values)
    bad = [0] * len(values)
    for rank, value in enumerate(values):
        if value is not None:
            found = json.loads(value)
            bad[rank] = found["bad"]
            turns[rank], lanes[rank :: len(values)] = found["turn"], [place(*parts) for parts in found["lanes"]]
    return StreamCursor(epoch=cursor.epoch, batches=cursor.batches, bad=bad, turns=turns, lanes=lanes)


def pack_cursor(cursor: StreamCursor, identity: Mapping[str, object]) -> dict[str, Any]:
    """Return a sealed state of plain ints, strings and lists, with about 30 bytes for each lane."""
    return seal(
        {
            "stream": dict(identity),
            "cursor": {"epoch": cursor.epoch, "batches": cursor.batches, "bad": list(cursor.bad)},
            "turns": list(cursor.turns),
            "lanes": [None if place is None else list(place) for place in cursor.lanes],
            "missing": cursor.missing,
        }
    )


def unpack_cursor(
    state: Mapping[str, object],
    identity: Mapping[str, object],
    count: int,
    flaw: Flaw,
    place: Callable[..., object] = Place,
) -> StreamCursor:
    """Return the cursor of a state, after checking that it is complete and of this stream.

    Args:
        state: What `pack_cursor` returned.
        identity: The identity of this stream.
        count: The number of its lanes.
        flaw: Says what is wrong with a place.
        place: Makes a place from its values.

    Raises:
        StateError: If it is not a stream's state, is damaged, has another version, belongs to another stream, order or seed,
            or misses a rank.
    """
    fields = open_stream_state(state)
    saved, following = fields["stream"], fields["cursor"]["epoch"] + 1
    for what in {**identity, **saved}:
        found, wanted = identity.get(what), saved.get(what)
        if found != wanted:
            raise StateError(
                f"cannot resume: the state is for {what} {wanted!r}, this loader has {found!r}. "
                f"Give the loader that {what} again, or start a new epoch: loader.seek(epoch={following})."
            )
    if fields["missing"]:
        names = ", ".join(map(str, fields["missing"]))
        raise StateError(
            f"cannot resume: the state misses rank {names} of {len(fields['turns'])}. All ranks have to call state_dict() "
            "at the same batch, and to reach each other through torch.distributed or Loader(store=...). "
            "Merge the states that each rank saved with loaderkit.merge_states, or start a new epoch: "
            f"loader.seek(epoch={following})."
        )
    if len(fields["lanes"]) != count:
        raise damaged("lanes", fields["lanes"], f"{count} lanes", _WAY_OUT)
    for lane, parts in enumerate(fields["lanes"]):
        if wanted := flaw(lane, parts):
            raise damaged(f"lanes[{lane}]", parts, wanted, _WAY_OUT)
        if identity["epochs"] == "of the stream" and parts[0] < fields["cursor"]["epoch"]:
            raise damaged(f"lanes[{lane}]", parts, f"a cycle of at least {following - 1}, the epoch", _WAY_OUT)
    return _cursor_of(fields, place)


def merge_states(states: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    """Merge the stream states that ranks saved separately into one.

    You need this only if the ranks could not reach each other when they called `state_dict()`: each state then misses the
    other ranks.

    Args:
        states: What each rank's `state_dict()` returned, at the same batch; in any order.

    Returns:
        A state for `load_state_dict` of any rank.

    Raises:
        ValueError: If there are no states, or they are not of one run at one batch.

    Examples:
        >>> stream = lk.StreamDataset(["a", "b"], lambda shard, start: range(start, 6), lanes=2)
        >>> ranks = [lk.Loader(stream, batch_size=2, world=lk.World(rank, 2), steps=4) for rank in (0, 1)]
        >>> _ = [next(iter(loader)) for loader in ranks]
        >>> states = [loader.state_dict() for loader in ranks]
        >>> [state["missing"] for state in states]
        [[1], [0]]
        >>> whole = lk.merge_states(states)
        >>> whole["missing"]
        []
        >>> ranks[0].load_state_dict(whole)
    """
    if not states:
        raise ValueError("stream: no states to merge, wanted those of all ranks.")
    opened = [open_stream_state(state) for state in states]
    cursors = [_cursor_of(state, lambda *parts: parts) for state in opened]
    first = cursors[0]
    turns, lanes = list(first.turns), list(first.lanes)
    for state, cursor in zip(opened, cursors, strict=True):
        for what, found, wanted in (
            ("stream", state["stream"], opened[0]["stream"]),
            ("cursor", {**state["cursor"], "bad": ()}, {**opened[0]["cursor"], "bad": ()}),
            ("ranks", len(cursor.turns), len(turns)),
            ("lanes", len(cursor.lanes), len(lanes)),
        ):
            if found != wanted:
                raise ValueError(
                    f"stream: cannot merge states of different runs or batches: {what} {found} and {wanted}."
                )
        turns = [old if new is None else new for old, new in zip(turns, cursor.turns, strict=True)]
        lanes = [old if new is None else new for old, new in zip(lanes, cursor.lanes, strict=True)]
    # Each rank knows only its own number of bad samples, and reports 0 for the others.
    bad = [max(found) for found in zip(*(cursor.bad for cursor in cursors if cursor.bad), strict=True)]
    return pack_cursor(dataclasses.replace(first, turns=turns, lanes=lanes, bad=bad), opened[0]["stream"])


def open_stream_state(state: object) -> dict[str, Any]:
    """Return the fields of a stream's state, after all checks that do not need the stream."""
    fields = open_state(state, _FORM, "the state of a Loader of a stream", _WAY_OUT)
    turns, lanes, bad = fields["turns"], fields["lanes"], fields["cursor"]["bad"]
    ranks = len(turns)
    if not 1 <= ranks <= len(lanes):
        raise damaged("turns", turns, f"from 1 to {len(lanes)} ranks, one for each lane at most", _WAY_OUT)
    if len(bad) != ranks:
        raise damaged("cursor.bad", bad, f"{ranks} counts, one for each rank", _WAY_OUT)
    missing = [rank for rank, turn in enumerate(turns) if turn is None]
    if list(fields["missing"]) != missing:
        raise damaged("missing", fields["missing"], f"{missing}, the ranks without a turn", _WAY_OUT)
    for rank, turn in enumerate(turns):
        own = lanes[rank::ranks]
        if turn is not None and turn >= len(own):
            raise damaged(f"turns[{rank}]", turn, f"one of {len(own)} lanes", _WAY_OUT)
        if any((place is None) != (turn is None) for place in own):
            raise damaged(
                "lanes", lanes, f"{'no places' if turn is None else 'a place'} in each lane of rank {rank}", _WAY_OUT
            )
    return fields


def _cursor_of(fields: Mapping[str, Any], place: Callable[..., object]) -> StreamCursor:
    cursor = fields["cursor"]
    lanes = [None if parts is None else place(*parts) for parts in fields["lanes"]]
    return StreamCursor(
        epoch=cursor["epoch"], batches=cursor["batches"], bad=cursor["bad"], turns=list(fields["turns"]), lanes=lanes
    )
