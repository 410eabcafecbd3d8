"""Checks of a loader's guarantees, for any loader.

If a guarantee is broken, a check raises a LawError that names the sample, the batch and the reason.
Most take `make_loader`, a function that returns a new loader: a `lk.Loader`, a `DataLoader`, a `StatefulDataLoader` or
any other iterable, with or without `state_dict()` and `load_state_dict()`. They call it with the settings that they
vary, as keywords (`world=`, `num_workers=`, ...), and with nothing else.
"""

from loaderkit.system.pickling import find_unpicklable
from loaderkit.testing.compare import LawError, find_difference, sample_ids
from loaderkit.testing.cost import assert_cost_independent_of_size
from loaderkit.testing.delivery import assert_elastic, assert_exactly_once
from loaderkit.testing.generators import (
    assert_generators_untouched,
    assert_no_private_generators,
    find_private_generators,
)
from loaderkit.testing.repeats import assert_epochs_differ, assert_workers_dont_matter
from loaderkit.testing.resume import assert_resumable
from loaderkit.testing.state import assert_small_state

__all__ = [
    "LawError",
    "assert_cost_independent_of_size",
    "assert_elastic",
    "assert_epochs_differ",
    "assert_exactly_once",
    "assert_generators_untouched",
    "assert_no_private_generators",
    "assert_resumable",
    "assert_small_state",
    "assert_workers_dont_matter",
    "find_difference",
    "find_private_generators",
    "find_unpicklable",
    "sample_ids",
]
