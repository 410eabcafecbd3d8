"""Check that an epoch delivers each sample once, also if ranks or workers change in the middle of it."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice, permutations
from typing import Any

from loaderkit.testing.compare import Ids, LawError, numbered, sample_ids, tally
from loaderkit.testing.consume import (
    NO_STATE,
    MakeLoader,
    OnEpoch,
    described,
    expected_samples,
    failing_as,
    has_state,
    length_of,
    load,
    make,
    process,
    ranks_of,
    run_epoch,
)


def assert_exactly_once(
    make_loader: MakeLoader,
    *,
    samples: int | Iterable[Hashable] | None = None,
    worlds: Sequence[int] = (),
    epochs: int = 1,
    ids: Ids = sample_ids,
    on_epoch: OnEpoch | None = None,
) -> None:
    """Check that an epoch delivers each sample once over all ranks, in the same number of batches on each.

    Args:
        make_loader: Called with `world=World(rank, size)` if `worlds` are given.
        samples: The samples' ids, or their number N for the ids 0 to N - 1. Default: all indices of
            `loader.dataset`.
        worlds: Numbers of ranks to check, one after another.
        epochs: Number of epochs to run in a row.
        ids: Returns the ids of a batch's samples.
        on_epoch: Called with (loader, epoch) before each epoch, for a `set_epoch`.

    Raises:
        LawError: If a sample is repeated or missing, or the number of batches differs between ranks
            or from `len()`.
        ValueError: If `samples` is needed and not given.

    Examples:
        >>> def make_loader(world):
        ...     return lk.Loader(range(10), 3, shuffle=True, world=world)
        >>> lk.testing.assert_exactly_once(make_loader, worlds=(1, 2, 3))
    """
    for size in worlds or (None,):
        ranks: list[list[tuple[int | None, list[object]]]] = []  # [rank][epoch]: length and batches
        expected: list[object] = []
        names = [f"rank {rank} of {size}" for rank in range(size)] if size else ["the loader"]
        for rank, (name, world) in enumerate(zip(names, ranks_of(size), strict=True)):
            with process(seed=1000 + rank):
                with failing_as(f"making {name}"):
                    loader = make(make_loader, world)
                expected = expected_samples(samples, loader)
                with failing_as(name):
                    ranks.append([])
                    for epoch in range(epochs):
                        passed = run_epoch(loader, epoch, first=epoch == 0, on_epoch=on_epoch)
                        ranks[-1].append((length_of(loader), list(passed)))
        over = f" over {numbered(size, 'rank')}" if size else ""
        for epoch in range(epochs):
            _check_once(expected, [rank[epoch][1] for rank in ranks], ids, f"epoch {epoch}{over}")
            for name, (length, batches) in zip(names, (passes[epoch] for passes in ranks), strict=True):
                if length is not None and length != len(batches):
                    found = numbered(len(batches), "batch")
                    raise LawError(f"{name} has len() = {length}, but epoch {epoch} has {found}.")


def assert_elastic(
    make_loader: MakeLoader,
    settings: Sequence[Mapping[str, Any]],
    *,
    samples: int | Iterable[Hashable] | None = None,
    stops: Sequence[int] | None = None,
    ids: Ids = sample_ids,
) -> None:
    """Check that a run can resume with other settings and still delivers each sample of the epoch once.

    For each pair of settings, the run stops after each batch with the first and resumes with the
    second. All ranks load rank 0's state. One more run changes through all settings, with one batch each.

    Args:
        make_loader: Called with an entry of `settings`.
        settings: Two or more, such as `{"num_workers": 2}` or `{"world_size": 2, "batch_size": 3}`.
            Instead of `world_size` the loader gets `world=World(rank, size)`.
        samples: The samples' ids, or their number. Default: all indices of `loader.dataset`.
        stops: Numbers of batches to stop after. Default: every one.
        ids: Returns the ids of a batch's samples.

    Raises:
        LawError: If a resume raises, a sample is repeated or missing, or the number of batches
            differs between ranks.
        ValueError: If there are fewer than two settings.

    Examples:
        >>> def make_loader(**settings):
        ...     return lk.Loader(range(12), **{"batch_size": 2, "shuffle": True} | settings)
        >>> lk.testing.assert_elastic(make_loader, [{"world_size": 1}, {"world_size": 2}, {"batch_size": 3}])
    """
    if len(settings) < 2:
        raise ValueError(f"elastic: {len(settings)} settings, wanted at least two to change between.")
    with process(seed=1):
        expected = expected_samples(samples, _made(make_loader, settings[0], 0))
    for start, then in permutations(settings, 2):
        whole, _ = _run(make_loader, start, None, None, f"a run with {described(start)}")
        for stop in range(1, len(whole[0]) + 1) if stops is None else stops:
            _check_runs(make_loader, [(start, stop), (then, None)], expected, ids)
    runs: list[tuple[Mapping[str, Any], int | None]] = [(entry, 1) for entry in settings[:-1]]
    _check_runs(make_loader, [*runs, (settings[-1], None)], expected, ids)


def _check_runs(
    make_loader: MakeLoader, runs: Sequence[tuple[Mapping[str, Any], int | None]], expected: list[object], ids: Ids
) -> None:
    """Run (settings, stop) one after another, each from the state that the last one left, and count the samples."""
    state: object = None
    got: list[object] = []
    history: list[str] = []
    for number, (entry, stop) in enumerate(runs):
        if got and tally(expected, got) is None:
            got, history = [], [*history, "the end of the epoch"]
        what = f"{'resume' if number else 'a run'} with {described(entry)}"
        what += f" (after {', '.join(history)})" if number else ""
        ranks, state = _run(make_loader, entry, state, stop, what, seed=100 * number)
        hint = NO_STATE if state is None else ""
        _check_even([len(batches) for batches in ranks], what, hint)
        got += [sample for batches in ranks for batch in batches for sample in ids(batch)]
        history.append(described(entry) if stop is None else f"{numbered(stop, 'batch')} with {described(entry)}")
    if found := tally(expected, got):
        raise LawError(f"over an epoch of {', then '.join(history)}: {found}.{hint}")


def _run(
    make_loader: MakeLoader, entry: Mapping[str, Any], state: object, stop: int | None, what: str, seed: int = 0
) -> tuple[list[list[object]], object]:
    """Return the batches of each rank, up to `stop`, and rank 0's state after them."""
    ranks, saved = [], None
    for rank in range(entry.get("world_size", 1)):
        with process(seed + rank):
            loader = _made(make_loader, entry, rank)
            with failing_as(what):
                if state is not None:
                    load(loader, state)
                batches = run_epoch(loader, 0)
                ranks.append(list(islice(batches, stop)))
                if rank == 0 and has_state(loader):
                    saved = loader.state_dict()
    return ranks, saved


def _made(make_loader: MakeLoader, entry: Mapping[str, Any], rank: int) -> Any:
    changes = {name: value for name, value in entry.items() if name != "world_size"}
    with failing_as(f"making a loader with {described(entry)}"):
        return make(make_loader, ranks_of(entry.get("world_size"))[rank], **changes)


def _check_once(expected: list[object], ranks: list[list[object]], ids: Ids, where: str) -> None:
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
            f"one would wait for the other forever.{hint}"
        )
