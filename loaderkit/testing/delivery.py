"""Each sample once: over ranks and workers, and over a change of them in the middle of an epoch."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice, permutations
from typing import Any, NamedTuple

from loaderkit.testing.compare import Ids, LawError, sample_ids, tally
from loaderkit.testing.consume import (
    MakeLoader,
    OnEpoch,
    described,
    expected_samples,
    failing_as,
    has_state,
    length_of,
    make,
    process,
    ranks_of,
    run_epoch,
    through_file,
)

_NO_STATE = " The loader has no state_dict() and load_state_dict(): the resumed run begins at the start."


def assert_exactly_once(
    make_loader: MakeLoader,
    *,
    samples: int | Iterable[Hashable] | None = None,
    worlds: Sequence[int] = (),
    epochs: int = 1,
    ids: Ids = sample_ids,
    on_epoch: OnEpoch | None = None,
) -> None:
    """Check that an epoch has each sample once over all ranks, in equally many batches on each.

    Args:
        make_loader: Called with `world=World(rank, size)` if `worlds` are given.
        samples: Their ids, or how many there are (0 to samples - 1); by default
            as many as `loader.dataset` has.
        worlds: Numbers of ranks, one after the other.
        epochs: How many in a row.
        ids: From a batch to the list of its samples' ids.
        on_epoch: Called with (loader, epoch) before each epoch, for a `set_epoch`.

    Raises:
        LawError: If a sample is repeated or missing, the ranks' batches are not
            equally many, or not as many as `len()` says.
        ValueError: If `samples` are needed and not given.
    """
    for size in worlds or (None,):
        ranks: list[list[_Pass]] = []
        expected: list[Any] = []
        for rank, world in enumerate(ranks_of(size)):
            where = f"rank {rank} of {size}" if size else "the loader"
            with process(seed=1000 + rank):
                with failing_as(f"making {where}"):
                    loader = make(make_loader, world)
                expected = expected_samples(samples, loader)
                with failing_as(where):
                    ranks.append([_pass(loader, epoch, on_epoch) for epoch in range(epochs)])
        for epoch in range(epochs):
            _check_once(expected, [rank[epoch].batches for rank in ranks], ids, f"epoch {epoch}{_on(size)}")
            for rank, (said, batches) in enumerate(passed[epoch] for passed in ranks):
                if said is not None and said != len(batches):
                    who = f"rank {rank} of {size}" if size else "the loader"
                    raise LawError(f"{who} says len() = {said}, but epoch {epoch} has {_batches(len(batches))}.")


def assert_elastic(
    make_loader: MakeLoader,
    settings: Sequence[Mapping[str, Any]],
    *,
    samples: int | Iterable[Hashable] | None = None,
    stops: Sequence[int] | None = None,
    ids: Ids = sample_ids,
) -> None:
    """Check that a run may resume under other settings, and still has each sample once in the epoch.

    A run under each of the settings is stopped after each batch and resumed
    under each of the others, with rank 0's state on all ranks; and one run goes
    through all of them, a batch under each.

    Args:
        make_loader: Called with an entry of `settings`.
        settings: Such as `{"num_workers": 2}` or `{"world_size": 2, "batch_size": 3}`;
            in place of `world_size` the loader is given `world=World(rank, size)`.
        samples: Their ids, or how many there are; as many as `loader.dataset` has by default.
        stops: After how many batches of each rank; all by default.
        ids: From a batch to the list of its samples' ids.

    Raises:
        LawError: If a resume raises, or a sample is repeated or missing, or
            the ranks have not equally many batches.
        ValueError: If there are fewer than two settings.
    """
    if len(settings) < 2:
        raise ValueError(f"elastic: {len(settings)} settings, wanted at least two to change between.")
    with process(seed=1):
        expected = expected_samples(samples, _made(make_loader, settings[0], 0))
    for start, then in permutations(settings, 2):
        whole, _ = _part(make_loader, start, None, None, f"a run with {described(start)}")
        for stop in range(1, len(whole[0]) + 1) if stops is None else stops:
            _check_chain(make_loader, [(start, stop), (then, None)], expected, ids)
    parts: list[tuple[Mapping[str, Any], int | None]] = [(entry, 1) for entry in settings[:-1]]
    _check_chain(make_loader, [*parts, (settings[-1], None)], expected, ids)


def _check_chain(
    make_loader: MakeLoader, parts: Sequence[tuple[Mapping[str, Any], int | None]], expected: list[Any], ids: Ids
) -> None:
    """Run the parts one after the other, each from the state that the one before left, and count."""
    state: Any = None
    got: list[Any] = []
    said: list[str] = []
    for number, (entry, stop) in enumerate(parts):
        if got and tally(expected, got) is None:
            got, said = [], [*said, "the epoch's edge"]
        what = f"{'resume' if number else 'a run'} with {described(entry)}"
        what += f" (after {', '.join(said)})" if number else ""
        ranks, state = _part(make_loader, entry, state, stop, what, seed=100 * number)
        hint = _NO_STATE if state is None else ""
        _check_even([len(batches) for batches in ranks], what, hint)
        got += [sample for batches in ranks for batch in batches for sample in ids(batch)]
        said.append(described(entry) if stop is None else f"{_batches(stop)} with {described(entry)}")
    if found := tally(expected, got):
        raise LawError(f"over an epoch of {', then '.join(said)}: {found}.{hint}")


def _part(
    make_loader: MakeLoader, entry: Mapping[str, Any], state: Any, stop: int | None, what: str, seed: int = 0
) -> tuple[list[list[Any]], Any]:
    """Return the batches of each rank, up to `stop`, and rank 0's state after them."""
    ranks, saved = [], None
    for rank in range(entry.get("world_size", 1)):
        with process(seed + rank):
            loader = _made(make_loader, entry, rank)
            with failing_as(what):
                if state is not None:
                    loader.load_state_dict(through_file(state))
                batches = run_epoch(loader, 0)
                ranks.append(list(islice(batches, stop)))
                if rank == 0 and has_state(loader):
                    saved = loader.state_dict()
    return ranks, saved


def _made(make_loader: MakeLoader, entry: Mapping[str, Any], rank: int) -> Any:
    changes = {name: value for name, value in entry.items() if name != "world_size"}
    with failing_as(f"making a loader with {described(entry)}"):
        return make(make_loader, ranks_of(entry.get("world_size"))[rank], **changes)


class _Pass(NamedTuple):
    """What `len()` said before an epoch, and the batches that came."""

    said: int | None
    batches: list[Any]


def _pass(loader: Any, epoch: int, on_epoch: OnEpoch | None) -> _Pass:
    said = length_of(loader)
    return _Pass(said, list(run_epoch(loader, epoch, first=epoch == 0, on_epoch=on_epoch)))


def _check_once(expected: list[Any], ranks: list[list[Any]], ids: Ids, where: str) -> None:
    found = tally(expected, [sample for batches in ranks for batch in batches for sample in ids(batch)])
    if found:
        places: dict[Hashable, list[str]] = {}
        for rank, batches in enumerate(ranks):
            for number, batch in enumerate(batches):
                for sample in ids(batch):
                    places.setdefault(sample, []).append(f"batch {number}" + f" of rank {rank}" * (len(ranks) > 1))
        twice = next((sample for sample, at in places.items() if len(at) > 1), None)
        detail = f" For instance sample {twice} in {' and '.join(places[twice])}." if twice is not None else ""
        raise LawError(f"{where}: {found}.{detail}")
    _check_even([len(batches) for batches in ranks], where)


def _check_even(counts: list[int], where: str, hint: str = "") -> None:
    if len(set(counts)) > 1:
        most, least = max(counts), min(counts)
        raise LawError(
            f"{where}: rank {counts.index(most)} has {most} batches, rank {counts.index(least)} has {least}: "
            f"one would wait for the other for ever.{hint}"
        )


def _on(size: int | None) -> str:
    return f" over {size} rank{'' if size == 1 else 's'}" if size else ""


def _batches(count: int) -> str:
    return f"{count} batch{'' if count == 1 else 'es'}"
