"""Where a run stands in its data: the whole of a loader's state."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A point in the sample order, the same on every rank.

    Counting samples rather than steps lets a resumed run use another
    world size, batch size or worker count.
    """

    epoch: int = 0
    samples: int = 0  # consumed this epoch, all ranks together
    batches: int = 0  # yielded this epoch, by each rank
    plan: tuple[int, ...] = ()  # what a plan adds, e.g. the geometry of an open bucket window

    def __post_init__(self) -> None:
        for name, value in (("epoch", self.epoch), ("samples", self.samples), ("batches", self.batches)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"cursor: {name} is {value!r}, wanted an integer of at least 0.")

    def next_epoch(self) -> "Cursor":
        """Return the start of the following epoch."""
        return Cursor(epoch=self.epoch + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What a cursor counts in: it means nothing in other data, or in another order."""

    dataset: str
    order: str
    seed: int


def fingerprint(dataset: Any, size: int) -> str:
    """Describe a dataset so that a resume can tell another one from it.

    Args:
        dataset: Its `fingerprint()` is used where it has one (a short string
            that changes with the data, not with transforms).
        size: Number of samples.
    """
    own = getattr(dataset, "fingerprint", None)
    if not callable(own):
        return f"{size:,} samples"
    text = str(own())
    if len(text) > 200:
        text = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{size:,} samples ({text})"


def pack_state(cursor: Cursor, identity: Identity, step: int) -> dict[str, Any]:
    """Turn a position into a dict of plain ints, strings and lists, under 1 KB.

    Args:
        cursor: The position.
        identity: What it counts in.
        step: Samples of a full step of all ranks, the unit of `cursor.batches`.
            Only those who count batches need it.
    """
    position = asdict(cursor)
    position["plan"] = list(cursor.plan)
    return {"version": STATE_VERSION, "cursor": position, "identity": asdict(identity), "step": step}


def unpack_state(
    state: Mapping[str, Any], identify: Callable[[int], Identity], samples_of: Callable[[Cursor], int]
) -> Cursor:
    """Check that a state belongs to this data and order, and return its cursor.

    Args:
        state: As `pack_state` returned it.
        identify: From an epoch to what its cursors count in here.
        samples_of: From a cursor to how many samples its epoch has.

    Raises:
        ValueError: If it is not a loader's state, was written by a newer
            version, belongs to another dataset, order or seed, or
            stands behind an epoch's end.
    """
    cursor = _check_form(state)
    saved, identity = state["identity"], identify(cursor.epoch)
    for field, what in (("dataset", "dataset"), ("seed", "seed"), ("order", "order")):
        found, wanted = getattr(identity, field), saved.get(field)
        if found != wanted:
            raise ValueError(
                f"cannot resume: the state is for {what} {wanted!r}, this loader has {found!r}. "
                f"Give the loader that {what} again, or go on with this one from a place you choose: "
                f"loader.seek(epoch={cursor.epoch}, samples={cursor.samples})."
            )
    if cursor.samples > (size := samples_of(cursor)):
        raise ValueError(
            f"cannot resume: the state stands behind {cursor.samples:,} samples, and epoch {cursor.epoch} has {size:,}. The state "
            f"is damaged. Take another one, or go on from a place you choose: loader.seek(epoch={cursor.epoch + 1})."
        )
    return cursor


def saved_order(state: Mapping[str, Any]) -> str:
    """Return the key of the order in which a state counts.

    Raises:
        ValueError: If it is not a loader's state, or of another version.
    """
    _check_form(state)
    return str(state["identity"]["order"])


def _check_form(state: Mapping[str, Any]) -> Cursor:
    if not isinstance(state, Mapping) or not {"version", "cursor", "identity"} <= set(state):
        found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"cannot resume: this is not the state of a loaderkit Loader (found {found}, wanted the keys "
            "'version', 'cursor', 'identity'). Pass what loader.state_dict() returned."
        )
    if state["version"] != STATE_VERSION:
        raise ValueError(
            f"cannot resume: the state has version {state['version']}, this loaderkit reads version {STATE_VERSION}. "
            "Install the loaderkit that wrote it, or start from a place you choose: loader.seek(epoch=..., samples=...)."
        )
    position, saved = state["cursor"], state["identity"]
    for what, found, kind in (("cursor", position, Cursor), ("identity", saved, Identity)):
        wanted = [f.name for f in fields(kind)]
        if not isinstance(found, Mapping) or set(found) != set(wanted):
            shown = sorted(found) if isinstance(found, Mapping) else repr(found)
            raise ValueError(f"cannot resume: the state's {what} has {shown}, wanted {wanted}. The state is damaged.")
    return Cursor(**{**position, "plan": tuple(position["plan"])})
