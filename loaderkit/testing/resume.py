"""Check that a run that stops anywhere and resumes in a new loader delivers the remaining batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from loaderkit.testing.compare import (
    Ids,
    LawError,
    describe_batch,
    find_difference,
    ids_or_none,
    numbered,
    sample_ids,
    tally,
)
from loaderkit.testing.consume import (
    NO_STATE,
    Consumer,
    MakeLoader,
    OnEpoch,
    failing_as,
    has_state,
    length_of,
    load,
    make,
    process,
    ranks_of,
    run_epoch,
    through_file,
)

_CONSUMERS = {"trainer": "as a Trainer draws", "loop": "in a for loop"}


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
    """Check that a stopped run continues with the remaining batches, bit for bit.

    The state is saved before the first batch and after each batch, including an epoch's last. It
    passes through JSON or pickle into a new loader with other global seeds. That loader must
    deliver the batches of the uninterrupted run to the end of the next epoch. A second resume, one
    batch later, must do the same.

    Args:
        make_loader: Called with `world=World(rank, size)` if `world_size` is given.
        epochs: Number of epochs to stop in. One more epoch is run.
        stops: Numbers of batches since the start to stop after. Default: every one.
        consumers: "trainer" draws like Lightning: with `len()` it never draws an epoch's StopIteration,
            and without `len()` it fetches one batch ahead. "loop" is a for loop.
        world_size: Number of ranks. All ranks load the state of rank 0, as from a checkpoint.
        ids: Returns the ids of a batch's samples, for the messages.
        on_epoch: Called with (loader, epoch) before each epoch, for a `set_epoch`.

    Raises:
        LawError: If a resume raises, or a batch differs.

    Examples:
        >>> lk.testing.assert_resumable(lambda: lk.Loader(range(10), 3, shuffle=True))
    """
    for consumer in consumers:
        trial = _Trial(make_loader, consumer, world_size, ids, on_epoch)
        trial.record(epochs)
        later = [trial.check(*stop) for stop in trial.stops(epochs, stops)]
        for resumed in later:
            if resumed is not None:
                trial.check_again(*resumed)


@dataclass
class _Trial:
    """The uninterrupted run of one consumer, and the checks against it."""

    make_loader: MakeLoader
    consumer: Consumer
    world_size: int | None
    ids: Ids
    on_epoch: OnEpoch | None
    whole: list[list[list[object]]] = field(default_factory=list)  # [rank][epoch][batch]
    states: dict[tuple[int, int], object] = field(default_factory=dict)  # rank 0's, by (epoch, batches)
    stateful: bool = True
    sized: bool = True

    def record(self, epochs: int) -> None:
        """Run twice without a stop; the second run saves the state after every batch."""
        for rank, world in enumerate(ranks_of(self.world_size)):
            with process(seed=rank), failing_as(f"the uninterrupted run{self._who(rank)}"):
                loader = make(self.make_loader, world)
                self.whole.append([list(self._draw(loader, epoch, first=epoch == 0)) for epoch in range(epochs + 1)])
                self.sized = length_of(loader) is not None
        if not any(self.whole[0]):
            raise LawError("the uninterrupted run has no batches: nothing to resume.")
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
                    hint=lambda: " Two equal runs must agree before a resume can.",
                )
                if self.consumer == "loop":
                    self._save(loader, epoch, len(got))

    def stops(self, epochs: int, wanted: Sequence[int] | None) -> list[tuple[int, int]]:
        """Return the points to stop at, as (epoch, batches)."""
        stops = [(0, 0)]
        stops += [(epoch, n + 1) for epoch in range(epochs) for n in range(len(self.whole[0][epoch]))]
        for stop in wanted or ():
            if not 0 <= stop < len(stops):
                raise ValueError(
                    f"resumable: stop after batch {stop}, wanted at most {len(stops) - 1}, the batches of {epochs} epochs."
                )
        # The start comes last, because its failures say least.
        return [*stops[1:], stops[0]] if wanted is None else [stops[stop] for stop in wanted]

    def check(self, epoch: int, batches: int) -> tuple[int, int, object] | None:
        """Resume after `batches` batches and compare the rest; return the arguments of `check_again`, if any."""
        where = f"resume after {numbered(batches, 'batch')} of epoch {epoch}"
        return self._check_from(self.states[epoch, batches], *self._at(epoch, batches), where, epochs=2)

    def check_again(self, epoch: int, batches: int, state: object) -> None:
        """Resume from the state that a resumed run saved after its first batch."""
        where = f"second resume, after {numbered(batches, 'batch')} of epoch {epoch}"
        self._check_from(state, *self._at(epoch, batches), where, epochs=1)

    def _check_from(
        self, state: object, epoch: int, batches: int, where: str, *, epochs: int
    ) -> tuple[int, int, object] | None:
        until = min(epoch + epochs, len(self.whole[0]))
        later = None
        fresh = (epoch, batches) == (0, 0)
        got: list[list[list[object]]] = []  # [rank][epoch][batch]
        for rank, world in enumerate(ranks_of(self.world_size)):
            with process(seed=7919 + rank), failing_as(f"{where}{self._who(rank)}"):
                loader = make(self.make_loader, world)
                if self.stateful:
                    load(loader, state)
                got.append([])
                for now in range(epoch, until):
                    drawn = self._draw(loader, now, first=now == epoch, done=batches if now == epoch else 0)
                    head = list(islice(drawn, 1))
                    if self.consumer == "loop" and batches + 1 >= len(self.whole[0][now]):
                        head += drawn  # a for loop saves the state of an epoch's end after the loop
                    if now == epoch and rank == 0 and self.stateful:
                        later = epoch, batches + 1, through_file(loader.state_dict())
                    got[rank].append([*head, *drawn])
        for rank, found in enumerate(got):
            for now, wanted in enumerate(self.whole[rank][epoch:until]):
                start = batches if now == 0 else 0
                rests = [each[now] for each in got]
                self._compare(
                    wanted[start:],
                    found[now],
                    f"{where}{self._who(rank)}, {_CONSUMERS[self.consumer]}",
                    epoch=epoch + now,
                    start=start,
                    hint=lambda: self._tally(epoch + now, start, rests) + self._hint(rank, fresh=fresh),  # noqa: B023
                )
        return later

    def _compare(
        self,
        wanted: list[object],
        got: list[object],
        where: str,
        *,
        epoch: int,
        start: int = 0,
        hint: Callable[[], str],
    ) -> None:
        for number, (a, b) in enumerate(zip(wanted, got, strict=False), start=start):
            if find_difference(a, b) is not None:
                raise LawError(
                    f"{where}: batch {number} of epoch {epoch} differs: {describe_batch(a, b, self.ids)}.{hint()}"
                )
        if len(wanted) != len(got):
            raise LawError(f"{where}: epoch {epoch} has {numbered(len(got), 'batch')}, wanted {len(wanted)}.{hint()}")

    def _tally(self, epoch: int, start: int, rests: list[list[object]]) -> str:
        """Name the samples that the stopped and the resumed run together repeat or miss, over all ranks."""
        wanted: list[object] = []
        got: list[object] = []
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
            return " No batch had been drawn: the batches depend on the process's global seeds, which differ now."
        if not self.stateful:
            return NO_STATE
        if not self.sized and self.consumer == "trainer":
            return " The loader has no len(): a Trainer then fetches one batch ahead, and the state counts it as used."
        if rank:
            return " All ranks loaded rank 0's state, as from a checkpoint."
        return ""

    def _draw(self, loader: object, epoch: int, *, first: bool, done: int = 0) -> Any:
        return run_epoch(loader, epoch, consumer=self.consumer, done=done, first=first, on_epoch=self.on_epoch)

    def _save(self, loader: Any, epoch: int, batches: int) -> None:
        self.states[epoch, batches] = through_file(loader.state_dict()) if self.stateful else None

    def _at(self, epoch: int, batches: int) -> tuple[int, int]:
        """Return the stop, or the next epoch's start if the stop is at the epoch's end."""
        return (epoch + 1, 0) if batches >= len(self.whole[0][epoch]) else (epoch, batches)

    def _who(self, rank: int) -> str:
        return "" if self.world_size is None else f" (rank {rank} of {self.world_size})"
