"""The state of a loader over indexed data: its position, and the data and order that this belongs to."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from loaderkit.sampling.order import shortened

STATE_VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A point in the sample order, the same on every rank.

    A cursor counts samples rather than steps, so a resumed run may use another world size, batch size or number of
    workers.

    Attributes:
        epoch: Number of the epoch.
        samples: Samples consumed this epoch, over all ranks.
        batches: Batches yielded this epoch, by each rank.
        plan: Integers that a plan adds, such as how an open window was arranged.

    Example:
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
        for name, value in (("epoch", self.epoch), ("samples", self.samples), ("batches", self.batches)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"cursor: {name} is {value!r}, wanted an integer of at least 0.")

    def next_epoch(self) -> "Cursor":
        """Return the start of the following epoch."""
        return Cursor(epoch=self.epoch + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The data and order that a cursor belongs to. It has no meaning in others.

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


def fingerprint(dataset: Any, size: int) -> str:
    """Return a short text that differs between datasets.

    Args:
        dataset: If it has a method `fingerprint()`, the text includes what that returns: a short string that changes
            with the data, not with transforms.
        size: Number of samples.
    """
    own = getattr(dataset, "fingerprint", None)
    if not callable(own):
        return f"{size:,} samples"
    return f"{size:,} samples ({shortened(str(own()))})"


def pack_state(cursor: Cursor, identity: Identity, step: int) -> dict[str, Any]:
    """Return a state of plain integers, strings and lists, under 1 KB.

    Args:
        cursor: The position.
        identity: The data and order that it belongs to.
        step: Samples of a full step of all ranks: the unit of `cursor.batches`.
    """
    position = asdict(cursor) | {"plan": list(cursor.plan)}
    return {"version": STATE_VERSION, "cursor": position, "identity": asdict(identity), "step": step}


def unpack_state(state: Mapping[str, Any]) -> tuple[Cursor, Identity]:
    """Return the position in a state, and the data and order that it belongs to.

    Raises:
        ValueError: If it is not the state of a Loader, is damaged, or has another version.
    """
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
    for part, kind in (("cursor", Cursor), ("identity", Identity)):
        saved, wanted = state[part], [field.name for field in fields(kind)]
        if not isinstance(saved, Mapping) or set(saved) != set(wanted):
            shown = sorted(saved) if isinstance(saved, Mapping) else repr(saved)
            raise ValueError(f"cannot resume: the state's {part} has {shown}, wanted {wanted}. The state is damaged.")
    position = state["cursor"]
    return Cursor(**{**position, "plan": tuple(position["plan"])}), Identity(**state["identity"])


def check_resume(cursor: Cursor, saved: Identity, found: Identity, size: int) -> None:
    """Raise an error unless a saved position belongs to this loader.

    Args:
        cursor: The saved position.
        saved: The data and order that it belongs to.
        found: The data and order of this loader, in the cursor's epoch.
        size: Samples of the cursor's epoch.

    Raises:
        ValueError: If the dataset, seed or order differs, or the position is after the epoch's end.
    """
    for what in ("dataset", "seed", "order"):
        before, now = getattr(saved, what), getattr(found, what)
        if before != now:
            raise ValueError(
                f"cannot resume: the state is for {what} {before!r}, this loader has {now!r}. "
                f"Give the loader that {what} again, or continue with this one from a place you choose: "
                f"loader.seek(epoch={cursor.epoch}, samples={cursor.samples})."
            )
    if cursor.samples > size:
        raise ValueError(
            f"cannot resume: the state is at sample {cursor.samples:,}, and epoch {cursor.epoch} has {size:,}. The state "
            f"is damaged. Use another one, or continue from a place you choose: loader.seek(epoch={cursor.epoch + 1})."
        )
