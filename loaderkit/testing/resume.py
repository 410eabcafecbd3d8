"""Stop anywhere, resume in a new loader, get the batches that were left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from loaderkit.system.world import World
from loaderkit.testing.compare import Ids, LawError, describe_batch, find_difference, ids_or_none, sample_ids, tally
from loaderkit.testing.consume import (
    Consumer,
    MakeLoader,
    OnEpoch,
    failing_as,
    has_state,
    length_of,
    make,
    process,
    ranks_of,
    run_epoch,
    through_file,
)

_STYLES = {"trainer": "as a Trainer draws", "loop": "in a for loop"}


def assert_resumable(
    make_loader: MakeLoader,
    *,
    epochs: int = 2,
    stops: Sequence[int] | None = None,
    consumers: Sequence[Consumer] = ("trainer", "loop"),
    world_size: int | None = None,
    ids: Ids = sample_ids,
    on_epoch: OnEpoch | None = None,
) -> None:
    """Check that a stopped run goes on with the batches that were left, bit for bit.

    The state is taken before the first batch and after every one, also an
    epoch's last; it goes through JSON or pickle into a new loader, whose process
    has other global seeds. Its batches to the end of the next epoch have to be
    those of the uninterrupted run, and once more after a second resume, one
    batch later.

    Args:
        make_loader: Called with `world=World(rank, size)` if there is a `world_size`.
        epochs: How many to stop in; one more is run.
        stops: Numbers of batches since the start to stop after; all by default.
        consumers: "trainer" takes the state as Lightning does: it never draws an
            epoch's StopIteration where there is a `len()`, and where there is
            none it has fetched one batch ahead. "loop" is a plain for loop.
        world_size: Run so many ranks. All of them load the state of rank 0, as
            from a checkpoint that rank 0 wrote.
        ids: From a batch to the list of its samples' ids, for the messages.
        on_epoch: Called with (loader, epoch) before each epoch, for a `set_epoch`.

    Raises:
        LawError: If a resume raises, or a batch differs.
    """
    for consumer in consumers:
        trial = _Trial(make_loader, consumer, world_size, ids, on_epoch)
        trial.record(epochs)
        later = [trial.check(*place) for place in trial.stops(epochs, stops)]
        for place in later:
            if place is not None:
                trial.check_again(*place)


@dataclass
class _Trial:
    """One way to draw, and what the uninterrupted run gives that way."""

    make_loader: MakeLoader
    consumer: Consumer
    world_size: int | None
    ids: Ids
    on_epoch: OnEpoch | None
    whole: list[list[list[Any]]] = field(default_factory=list)  # [rank][epoch][batch]
    states: dict[tuple[int, int], Any] = field(default_factory=dict)  # rank 0's, by (epoch, batches)
    stateful: bool = True
    sized: bool = True

    def record(self, epochs: int) -> None:
        """Run without a stop: once alone, and once with the state saved after every batch."""
        for rank, world in enumerate(ranks_of(self.world_size)):
            with process(seed=rank), failing_as(f"the uninterrupted run{self._who(rank)}"):
                loader = make(self.make_loader, world)
                self.whole.append([list(self._draw(loader, epoch, first=epoch == 0)) for epoch in range(epochs + 1)])
                self.sized = length_of(loader) is not None
        if not any(self.whole[0]):
            raise LawError("the uninterrupted run has no batches: there is nothing to resume.")
        with process(seed=0), failing_as("a run whose state is saved after every batch"):
            loader = make(self.make_loader, ranks_of(self.world_size)[0])
            self.stateful = has_state(loader)
            self._save(loader, 0, 0)
            for epoch in range(epochs):
                got = []
                for number, batch in enumerate(self._draw(loader, epoch, first=epoch == 0), start=1):
                    self._save(loader, epoch, number)
                    got.append(batch)
                self._compare(
                    self.whole[0][epoch],
                    got,
                    "a second run from the same seeds, whose state is saved after every batch",
                    epoch=epoch,
                    hint=lambda: " Two runs have to be the same before a resume can be.",
                )
                if self.consumer == "loop":
                    self._save(loader, epoch, len(got))

    def stops(self, epochs: int, wanted: Sequence[int] | None) -> list[tuple[int, int]]:
        """Return the points to stop at, as (epoch, batches).

        Raises:
            ValueError: If one is not within the epochs.
        """
        places = [(0, 0)]
        places += [(epoch, n + 1) for epoch in range(epochs) for n in range(len(self.whole[0][epoch]))]
        for stop in wanted or ():
            if not 0 <= stop < len(places):
                raise ValueError(
                    f"resumable: stop after batch {stop}, wanted at most {len(places) - 1}: all in {epochs} epochs."
                )
        # The start comes last: what it shows is less telling.
        return [*places[1:], places[0]] if wanted is None else [places[stop] for stop in wanted]

    def check(self, epoch: int, batches: int) -> tuple[int, int, Any] | None:
        """Resume after so many batches of the epoch, and compare what follows.

        Returns:
            The place and rank 0's state one batch later, if there is one.
        """
        where = f"resume after {_batches(batches)} of epoch {epoch}"
        return self._check_from(self.states[epoch, batches], *self._at(epoch, batches), where, epochs=2)

    def check_again(self, epoch: int, batches: int, state: Any) -> None:
        """Resume from the state of a run that had itself been resumed, one batch before."""
        where = f"second resume, after {_batches(batches)} of epoch {epoch}"
        self._check_from(state, *self._at(epoch, batches), where, epochs=1)

    def _check_from(
        self, state: Any, epoch: int, batches: int, where: str, *, epochs: int
    ) -> tuple[int, int, Any] | None:
        until = min(epoch + epochs, len(self.whole[0]))
        later = None
        fresh = (epoch, batches) == (0, 0)
        got: list[list[list[Any]]] = []  # [rank][epoch][batch]
        for rank, world in enumerate(ranks_of(self.world_size)):
            with process(seed=7919 + rank), failing_as(f"{where}{self._who(rank)}"):
                loader = make(self.make_loader, world)
                if self.stateful:
                    loader.load_state_dict(through_file(state))
                got.append([])
                for now in range(epoch, until):
                    drawn = self._draw(loader, now, first=now == epoch, done=batches if now == epoch else 0)
                    head = list(islice(drawn, 1))
                    rest = list(drawn) if self._is_over(now, batches + 1) else []
                    if now == epoch and rank == 0 and self.stateful:
                        later = epoch, batches + 1, through_file(loader.state_dict())
                    got[rank].append([*head, *rest, *drawn])
        for rank, found in enumerate(got):
            for now, wanted in enumerate(self.whole[rank][epoch:until]):
                start = batches if now == 0 else 0
                rests = [each[now] for each in got]
                self._compare(
                    wanted[start:],
                    found[now],
                    f"{where}{self._who(rank)}, {_STYLES[self.consumer]}",
                    epoch=epoch + now,
                    start=start,
                    hint=partial(self._explain, epoch + now, start, rests, rank, fresh=fresh),
                )
        return later

    def _compare(
        self, wanted: list[Any], got: list[Any], where: str, *, epoch: int, start: int = 0, hint: Callable[[], str]
    ) -> None:
        for number, (a, b) in enumerate(zip(wanted, got, strict=False), start=start):
            if find_difference(a, b) is not None:
                raise LawError(
                    f"{where}: batch {number} of epoch {epoch} differs: {describe_batch(a, b, self.ids)}.{hint()}"
                )
        if len(wanted) != len(got):
            raise LawError(f"{where}: {_batches(len(got))} of epoch {epoch} came, wanted {len(wanted)}.{hint()}")

    def _explain(self, epoch: int, start: int, rests: list[list[Any]], rank: int, *, fresh: bool) -> str:
        return self._tally(epoch, start, rests) + self._hint(rank, fresh=fresh)

    def _tally(self, epoch: int, start: int, rests: list[list[Any]]) -> str:
        """Say what the stopped and the resumed run together do to the epoch, over all ranks."""
        wanted: list[Any] = []
        got: list[Any] = []
        for rank, rest in enumerate(rests):
            whole = self.whole[rank][epoch]
            for collected, batches in ((wanted, whole), (got, whole[:start] + rest)):
                for batch in batches:
                    ids = ids_or_none(batch, self.ids)
                    if ids is None:
                        return ""
                    collected += ids
        found = tally(wanted, got)
        return f" Over the epoch {found}." if found else ""

    def _hint(self, rank: int, *, fresh: bool) -> str:
        if fresh:
            return " Nothing had been drawn: the batches come from the process's global seeds, which are others now."
        if not self.stateful:
            return " The loader has no state_dict() and load_state_dict(): the resumed run begins at the start."
        if not self.sized and self.consumer == "trainer":
            return " The loader has no len(): a Trainer then fetches one batch ahead, and the state counts it as used."
        if rank:
            return " All ranks loaded rank 0's state, as from a checkpoint."
        return ""

    def _draw(self, loader: Any, epoch: int, *, first: bool, done: int = 0) -> Any:
        return run_epoch(loader, epoch, consumer=self.consumer, done=done, first=first, on_epoch=self.on_epoch)

    def _save(self, loader: Any, epoch: int, batches: int) -> None:
        self.states[epoch, batches] = through_file(loader.state_dict()) if self.stateful else None

    def _is_over(self, epoch: int, batches: int) -> bool:
        """Say whether the epoch's state is taken after its end was drawn: in a for loop, behind the loop."""
        return self.consumer == "loop" and batches >= len(self.whole[0][epoch])

    def _at(self, epoch: int, batches: int) -> tuple[int, int]:
        """Move a place at an epoch's end to the start of the next."""
        return (epoch + 1, 0) if batches >= len(self.whole[0][epoch]) else (epoch, batches)

    def _who(self, rank: int) -> str:
        return "" if self.world_size is None else f" (rank {World(rank, self.world_size).rank} of {self.world_size})"


def _batches(count: int) -> str:
    return f"{count} batch{'' if count == 1 else 'es'}"
