"""The state of a stream: where each lane is, over all ranks."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from loaderkit.datasets.streams.lane import Place

STREAM_STATE_VERSION = 1
_KEYS = {"version", "stream", "cursor", "turns", "lanes", "missing"}


@dataclass(frozen=True, kw_only=True)
class StreamCursor:
    """Where all ranks of a run are in a stream, between two batches. Rank r of R has the lanes r, r + R, ..."""

    epoch: int = 0
    batches: int = 0  # of the epoch, that each rank has yielded
    bad: Sequence[int] = ()  # samples of the epoch that each rank has left out
    turns: Sequence[int | None] = (0,)  # for each rank, which of its lanes comes next; None if it did not answer
    lanes: Sequence[Any] = ()  # places; None if the rank did not answer. Empty at the epoch's start

    @property
    def missing(self) -> list[int]:
        """The ranks that did not answer."""
        return [rank for rank, turn in enumerate(self.turns) if turn is None]


class RankCursor(NamedTuple):
    """Where one rank is, between two batches."""

    origin: StreamCursor  # where all ranks were after the last load or seek
    since: int  # batches that this rank has yielded from there
    epoch: int
    batches: int
    turn: int
    places: tuple[Any, ...]  # of the rank's lanes
    bad: int = 0  # samples of the epoch that the rank has left out

    @property
    def name(self) -> str:
        """A name for this point of the run, the same on all ranks."""
        origin = json.dumps(pack_cursor(self.origin, {}))
        digest = hashlib.blake2b(origin.encode(), digest_size=12).hexdigest()
        return f"{digest}/{self.since}/{self.epoch}/{self.batches}"

    @property
    def value(self) -> str:
        """What only this rank knows, as JSON."""
        return json.dumps({"turn": self.turn, "lanes": self.places, "bad": self.bad})


def join_ranks(
    cursor: RankCursor, values: Sequence[str | None], count: int, place: Callable[..., Any] = Place
) -> StreamCursor:
    """Combine one rank's cursor, and the `RankCursor.value` of each rank that answered, over `count` lanes."""
    lanes: list[Any] = [None] * count
    turns: list[int | None] = [None] * len(values)
    bad = [0] * len(values)
    for rank, value in enumerate(values):
        if value is not None:
            found = json.loads(value)
            bad[rank] = found["bad"]
            turns[rank], lanes[rank :: len(values)] = found["turn"], [place(*parts) for parts in found["lanes"]]
    return StreamCursor(epoch=cursor.epoch, batches=cursor.batches, bad=bad, turns=turns, lanes=lanes)


def pack_cursor(cursor: StreamCursor, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state of plain ints, strings and lists, with about 30 bytes for each lane."""
    bad = {"bad": list(cursor.bad)} if any(cursor.bad) else {}
    return {
        "version": STREAM_STATE_VERSION,
        "stream": dict(identity),
        "cursor": {"epoch": cursor.epoch, "batches": cursor.batches, **bad},
        "turns": list(cursor.turns),
        "lanes": [None if place is None else list(place) for place in cursor.lanes],
        "missing": cursor.missing,
    }


def unpack_cursor(
    state: Mapping[str, Any], identity: Mapping[str, Any], place: Callable[..., Any] = Place
) -> StreamCursor:
    """Return the cursor of a state, after checking that it is complete and of this stream.

    Raises:
        ValueError: If it is not a stream's state, has another version, belongs to another stream, order or seed, or misses a
            rank.
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
            "Merge the states that each rank saved with loaderkit.merge_states, or start a new epoch: "
            f"loader.seek(epoch={cursor['epoch'] + 1})."
        )
    return _cursor_of(state, place)


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the stream states that the ranks of a run saved separately into one complete state.

    You need this only if the ranks could not reach each other when they called `state_dict()`: each state then misses the
    other ranks.

    Args:
        states: What each rank's `state_dict()` returned, at the same batch; in any order.

    Returns:
        A state for `load_state_dict` of any rank.

    Raises:
        ValueError: If there are no states, or they are not of one run at one batch.

    Example:
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
    for state in states:
        _check_form(state)
    cursors = [_cursor_of(state, lambda *parts: parts) for state in states]
    first = cursors[0]
    turns, lanes = list(first.turns), list(first.lanes)
    for state, cursor in zip(states, cursors, strict=True):
        for what, found, wanted in (
            ("stream", state["stream"], states[0]["stream"]),
            ("cursor", {**state["cursor"], "bad": ()}, {**states[0]["cursor"], "bad": ()}),
            ("ranks", len(cursor.turns), len(turns)),
        ):
            if found != wanted:
                raise ValueError(
                    f"stream: cannot merge states of different runs or batches: {what} {found} and {wanted}."
                )
        turns = [old if new is None else new for old, new in zip(turns, cursor.turns, strict=True)]
        lanes = [old if new is None else new for old, new in zip(lanes, cursor.lanes, strict=True)]
    # Each rank knows its own number alone, and reports 0 for the others.
    bad = [max(found) for found in zip(*(cursor.bad for cursor in cursors if cursor.bad), strict=True)]
    return pack_cursor(dataclasses.replace(first, turns=turns, lanes=lanes, bad=bad), states[0]["stream"])


def _cursor_of(state: Mapping[str, Any], place: Callable[..., Any]) -> StreamCursor:
    cursor = state["cursor"]
    lanes = [None if parts is None else place(*parts) for parts in state["lanes"]]
    return StreamCursor(**{"bad": (), **cursor}, turns=list(state["turns"]), lanes=lanes)


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
