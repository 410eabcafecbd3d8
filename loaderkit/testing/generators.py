"""Check that a loader does not use the caller's random generators, and that a dataset keeps none."""

from collections.abc import Mapping

from loaderkit.seeding.private import private_generators
from loaderkit.testing.compare import LawError, find_difference
from loaderkit.testing.consume import MakeLoader, failing_as, generator_states, has_state, make, process


def assert_generators_untouched(make_loader: MakeLoader) -> None:
    """Check that an epoch leaves the global generators of torch, numpy and `random` unchanged.

    Otherwise the training's own randomness, such as dropout, depends on the loader's settings.

    Args:
        make_loader: Called without arguments.

    Raises:
        LawError: If a generator moved; the message says at which step.

    Examples:
        >>> lk.testing.assert_generators_untouched(lambda: lk.Loader(range(10), 3, shuffle=True))
    """
    with process(seed=0):
        before = generator_states()
        with failing_as("making the loader"):
            loader = make(make_loader)
        _check_unmoved(before, "making the loader")
        with failing_as("drawing an epoch"):
            iterator = iter(loader)
            _check_unmoved(before, "iter(loader)")
            number = -1
            for number, _ in enumerate(iterator):
                _check_unmoved(before, f"drawing batch {number}")
                if has_state(loader):
                    loader.state_dict()
                    _check_unmoved(before, f"state_dict() after batch {number}")
        _check_unmoved(before, "the epoch's end")
        if number < 0:
            raise LawError("the epoch has no batches: nothing to check.")


def find_private_generators(dataset: object, *, name: str = "dataset") -> list[str]:
    """Return the paths of the random generators that a dataset keeps, such as "dataset.transform.rng".

    A Loader seeds them for each sample (`LoaderConfig.private_generators`); a DataLoader does not. The search covers attributes,
    those of classes too, containers (their first 1,000 entries), partials, bound methods, closures, and the globals that
    functions name. The global generators do not count, nor those of samplers and loaders. A generator that is only made when a sample
    is read is not found before that.

    Args:
        dataset: Any object, such as a dataset or a collate function.
        name: The object's name in the paths.

    Examples:
        >>> lk.testing.find_private_generators({"noise": np.random.default_rng(0)})
        ["dataset['noise']"]
    """
    return [each.path for each in private_generators(**{name: dataset})]


def assert_no_private_generators(dataset: object) -> None:
    """Check that a dataset keeps no random generator, for the use with a `torch.utils.data.DataLoader`.

    There each worker's copy of a generator draws the same numbers, and a resume restarts it.

    Args:
        dataset: Any object.

    Raises:
        LawError: If the dataset keeps a generator; the message names its path.

    Examples:
        >>> lk.testing.assert_no_private_generators(lk.ArrayDataset({"x": torch.zeros(10, 2)}))
    """
    paths = find_private_generators(dataset)
    if paths:
        one = len(paths) == 1
        raise LawError(
            f"{', '.join(paths)} {'is a random generator' if one else 'are random generators'} that the dataset keeps: "
            "in a DataLoader each worker's copy draws the same numbers, and a resume restarts it. Draw from "
            "loaderkit.sample_rng() when a sample is read, or from the global functions of torch, numpy or random."
        )


def _check_unmoved(before: Mapping[str, object], what: str) -> None:
    for name, state in generator_states().items():
        if find_difference(before[name], state) is not None:
            raise LawError(
                f"{what} moved {name}'s global generator: random numbers of the training, such as dropout, "
                "then depend on the loader."
            )
