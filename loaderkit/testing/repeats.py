"""Check that workers do not change the batches, and that epochs do."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

from loaderkit.testing.compare import Ids, LawError, describe_batch, find_difference, sample_ids
from loaderkit.testing.consume import MakeLoader, OnEpoch, described, failing_as, make, process, run_epoch


def assert_workers_dont_matter(
    make_loader: MakeLoader,
    *,
    workers: Sequence[int] = (0, 1, 2),
    start_methods: Sequence[str | None] = (None,),
    persistent: Sequence[bool] = (False, True),
    epochs: int = 2,
    ids: Ids = sample_ids,
    on_epoch: OnEpoch | None = None,
) -> None:
    """Check that the batches are the same bit for bit with any number and kind of workers.

    Every run starts with the same global seeds.

    Args:
        make_loader: Called with `num_workers=`, and with `persistent_workers=True` and
            `multiprocessing_context=` if these vary.
        workers: Numbers of workers. The first is the reference for the others.
        start_methods: "fork", "forkserver", "spawn", or None for the platform's default.
        persistent: Values of `persistent_workers`.
        epochs: Number of epochs to compare.
        ids: Returns the ids of a batch's samples, for the messages.
        on_epoch: Called with (loader, epoch) before each epoch, for a `set_epoch`.

    Raises:
        LawError: If a batch or the number of batches differs.

    Examples:
        >>> def make_loader(**settings):
        ...     return lk.Loader(range(10), 3, shuffle=True, engine="threads" if settings["num_workers"] else "inline",
        ...                      num_workers=settings["num_workers"])
        >>> lk.testing.assert_workers_dont_matter(make_loader, workers=(0, 2), persistent=(False,))
    """
    wanted: list[list[object]] | None = None
    for settings in _grid(workers, start_methods, persistent):
        with process(seed=0), failing_as(f"a run with {described(settings)}"):
            got = _epochs(make(make_loader, **settings), epochs, on_epoch)
        if wanted is None:
            wanted, first = got, described(settings)
        for epoch, (a, b) in enumerate(zip(wanted, got, strict=True)):
            _check_same(a, b, ids, f"with {described(settings)}, epoch {epoch}", f"the run with {first}")


def assert_epochs_differ(make_loader: MakeLoader, *, epochs: int = 3, on_epoch: OnEpoch | None = None) -> None:
    """Check that no epoch repeats another: the order or the augmentations differ.

    Args:
        make_loader: Called without arguments.
        epochs: Number of epochs; each is compared with every other.
        on_epoch: Called with (loader, epoch) before each epoch, for a `set_epoch`.

    Raises:
        LawError: If two epochs are equal bit for bit.

    Examples:
        >>> lk.testing.assert_epochs_differ(lambda: lk.Loader(range(10), 3, shuffle=True))
    """
    with process(seed=0), failing_as(f"a run of {epochs} epochs"):
        found = _epochs(make(make_loader), epochs, on_epoch)
    for a, b in combinations(range(epochs), 2):
        if find_difference(found[a], found[b]) is None:
            raise LawError(
                f"epoch {b} repeats epoch {a}: {len(found[a])} batches, all the same bit for bit. "
                "Either nothing shuffles or augments, or the epoch's number does not reach it."
            )


def _grid(
    workers: Sequence[int], start_methods: Sequence[str | None], persistent: Sequence[bool]
) -> list[dict[str, Any]]:
    """Return the settings of each run; only runs with workers vary the start method and persistence."""
    grid: list[dict[str, object]] = []
    for count in workers:
        for method, keep in product(start_methods, persistent) if count else [(None, False)]:
            settings: dict[str, object] = {"num_workers": count}
            settings |= {"multiprocessing_context": method} if method else {}
            grid.append(settings | ({"persistent_workers": True} if keep else {}))
    return grid


def _epochs(loader: Any, epochs: int, on_epoch: OnEpoch | None) -> list[list[object]]:
    return [list(run_epoch(loader, epoch, first=epoch == 0, on_epoch=on_epoch)) for epoch in range(epochs)]


def _check_same(wanted: list[object], got: list[object], ids: Ids, where: str, other: str) -> None:
    for number, (a, b) in enumerate(zip(wanted, got, strict=False)):
        if find_difference(a, b) is not None:
            raise LawError(f"{where}, batch {number} is not that of {other}: {describe_batch(a, b, ids)}.")
    if len(wanted) != len(got):
        raise LawError(f"{where} has {len(got)} batches, {other} has {len(wanted)}.")
