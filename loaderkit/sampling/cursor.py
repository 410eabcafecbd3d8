"""The state of a loader over indexed data: a position, and the data and order that the position belongs to."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from loaderkit.sampling.skips import STRETCHES, Skips
from loaderkit.system.checks import plain_integer
from loaderkit.system.state import (
    COUNT,
    EPOCH,
    INTEGER,
    POSITIVE,
    TEXT,
    Rule,
    StateError,
    damaged,
    integers,
    lists_of,
    open_state,
    seal,
)

_WAY_OUT = "continue from a place you choose: loader.seek(epoch=..., samples=...)"
_SKIPPED = "skipped"  # states of an early loaderkit lack it
_PRIVATE = "private_generators"  # only of data that keeps random generators
_COUNTS = {"epoch": EPOCH, "samples": COUNT, "batches": COUNT}
_FORM: dict[str, Rule | dict[str, Rule]] = {
    "cursor": {**_COUNTS, "plan": lists_of(INTEGER)},
    "identity": {"dataset": TEXT, "order": TEXT, "seed": INTEGER, "block": integers(1, 2**53, optional=True)},
    "step": POSITIVE,
    "bad": COUNT,
    "judged": COUNT,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A point in the sample order, the same on every rank.

    A cursor counts samples rather than steps, so a resumed run may use another world size, batch size or number of
    workers.

    Attributes:
        epoch: Number of the epoch.
        samples: Samples of the epoch's order that are done, over all ranks: delivered, or left out by `Loader.skip`.
        batches: Batches yielded this epoch, by each rank.
        plan: Integers that a plan adds, such as how an open window was arranged.

    Examples:
        >>> loader = lk.Loader(range(10), batch_size=4)
        >>> batch = next(iter(loader))
        >>> loader.cursor
        Cursor(epoch=0, samples=4, batches=1, plan=())
    """

    epoch: int = 0
    samples: int = 0
    batches: int = 0
    plan: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, rule in _COUNTS.items():
            object.__setattr__(self, name, plain_integer(getattr(self, name)))
            if not rule.holds(value := getattr(self, name)):
                raise ValueError(f"cursor: {name} is {value!r}, wanted {rule.wanted}.")

    def next_epoch(self) -> "Cursor":
        """Return the start of the following epoch."""
        return Cursor(epoch=self.epoch + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The data and order without which a cursor has no meaning.

    Attributes:
        dataset: Fingerprint of the dataset.
        order: Key of the order or plan.
        seed: The Loader's seed.
        block: The order's block if it is a ShardOrder, else None.
    """

    dataset: str
    order: str
    seed: int
    block: int | None = None


class Saved(NamedTuple):
    """The content of a state.

    Attributes:
        cursor: The position.
        identity: The data and order that the position belongs to.
        step: Size of a full step of all ranks, in samples (see `Plan.step`).
        bad: Bad samples of the epoch so far.
        judged: Number of the epoch's samples among which the bad ones were found.
        skips: What this epoch and later ones leave out.
        private: What happens to the random generators that the data keeps, "seed" or "leave"; None if it keeps none.
    """

    cursor: Cursor
    identity: Identity
    step: int
    bad: int = 0
    judged: int = 0
    skips: Skips = Skips()
    private: str | None = None


def pack_state(saved: Saved) -> dict[str, Any]:
    """Return a sealed state of plain integers, strings and lists, under 1 KB with up to 20 skipped ranges."""
    cursor, identity, step, bad, judged, skips, private = saved
    position = asdict(cursor) | {"plan": list(map(int, cursor.plan))}
    fields = {"cursor": position, "identity": asdict(identity), "step": int(step), "bad": bad, "judged": judged}
    if private is not None:
        fields[_PRIVATE] = private
    return seal(fields | {_SKIPPED: [list(each) for each in skips.stretches]})


def unpack_state(state: Mapping[str, object]) -> Saved:
    """Check a state's checksum, version and fields, and return them as a `Saved`.

    Raises:
        StateError: If it is not the state of a Loader, is damaged, or has another version.
    """
    also: dict[str, Rule | dict[str, Rule]] = {_SKIPPED: STRETCHES, _PRIVATE: TEXT}
    form = _FORM | {name: rule for name, rule in also.items() if isinstance(state, Mapping) and name in state}
    fields = open_state(state, form, "the state of a loaderkit Loader of data with an index", _WAY_OUT)
    position = fields["cursor"]
    cursor = Cursor(**{**position, "plan": tuple(position["plan"])})
    skips = Skips.of(fields.get(_SKIPPED, ()))
    identity, private = Identity(**fields["identity"]), fields.get(_PRIVATE)
    return Saved(cursor, identity, fields["step"], fields["bad"], fields["judged"], skips, private)


def bad_cursor(field: str, found: object, wanted: str) -> StateError:
    """Return the error for a cursor that a plan did not give."""
    return damaged(f"cursor.{field}", found, wanted, _WAY_OUT)


def check_resume(
    cursor: Cursor,
    saved: Identity,
    found: Identity,
    size: int,
    explain: Callable[[str, str], str] | None = None,
) -> None:
    """Raise an error unless a saved position belongs to this loader.

    Args:
        cursor: The saved position.
        saved: The data and order that the position belongs to.
        found: The data and order of this loader, in the cursor's epoch.
        size: Samples of the cursor's epoch.
        explain: Returns what the error adds about two datasets that differ.

    Raises:
        StateError: If the dataset, seed or order differs, or the position is after the epoch's end.
    """
    for what in ("dataset", "seed", "order", "block"):
        before, now = getattr(saved, what), getattr(found, what)
        if before != now:
            more = explain(before, now) if explain is not None and what == "dataset" else ""
            raise StateError(
                f"cannot resume: the state is for {what} {before!r}, this loader has {now!r}. {more}"
                f"Give the loader that {what} again, or continue with this one from a place you choose: "
                f"loader.seek(epoch={cursor.epoch}, samples={cursor.samples})."
            )
    if cursor.samples > size:
        raise StateError(
            f"cannot resume: the state is at sample {cursor.samples:,}, wanted at most {size:,}, all of epoch {cursor.epoch}. "
            f"The state is damaged. Use another one, or continue from a place you choose: loader.seek(epoch={cursor.epoch + 1})."
        )
