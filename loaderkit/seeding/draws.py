"""What datasets, transforms and collates declare: which random numbers they draw, and whether threads may share them."""

from enum import IntEnum

import numpy as np
from torch import Tensor
from torch.utils.data import TensorDataset

from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.system.arrays import UInt64Array
from loaderkit.system.described import Described
from loaderkit.system.overrides import own_attribute

_PLAIN = (list, tuple, range, np.ndarray, Tensor, TensorDataset)  # these exact types draw nothing; subclasses may
_METHODS = frozenset({"__getitem__", "__getitems__", "read", "__call__", "forward"})


class Draws(IntEnum):
    """Which random numbers something draws."""

    NOTHING = 0
    SAMPLE_RNG = 1  # from `lk.sample_rng()` alone
    ANYTHING = 2  # also from the global generators of torch, numpy and `random`


class Declares(Described):
    """A base class of adapters: what holds for all `_parts` holds for the adapter, and `repr` names its size."""

    @property
    def draws_nothing(self) -> bool:
        """Whether reading samples certainly draws no random numbers."""
        return self._draws() is Draws.NOTHING

    @property
    def draws_only_sample_rng(self) -> bool:
        """Whether reading samples draws from `lk.sample_rng()` at most."""
        return self._draws() is not Draws.ANYTHING

    @property
    def thread_safe(self) -> bool:
        """Whether threads may read samples at the same time."""
        return all(map(thread_safe, self._parts()))

    def _draws(self) -> Draws:
        """Return what reading a sample draws: by default, what its parts draw."""
        return max(map(draws, self._parts()), default=Draws.NOTHING)

    def _parts(self) -> list[object]:
        """Return what reading a sample calls besides this package: by default, its `transform`."""
        transform = getattr(self, "transform", None)
        return [] if transform is None else [transform]


def draws(value: object) -> Draws:
    """Return what a dataset, transform or collate draws, by its attributes `draws_nothing` or `draws_only_sample_rng`.

    A wrapper that forwards attributes, and a subclass that overrides how samples are read or how it is called, have to set the
    attribute themselves.
    """
    if draws_nothing(value):
        return Draws.NOTHING
    return Draws.SAMPLE_RNG if _declares(value, "draws_only_sample_rng") else Draws.ANYTHING


def thread_safe(value: object) -> bool:
    """Return whether a dataset, transform or collate says by its attribute `thread_safe` that threads may use it at the same time."""
    return type(value) in _PLAIN or _declares(value, "thread_safe")


def draws_nothing(value: object) -> bool:
    """Return whether a dataset, transform or collate certainly draws no random numbers."""
    return type(value) in _PLAIN or _declares(value, "draws_nothing")


def _declares(value: object, name: str) -> bool:
    return own_attribute(value, name, _METHODS) is True


class SampleRngSeeds(SampleSeeds):
    """Seeds for samples that draw from `sample_rng()` alone: the global generators are not touched."""

    def __init__(self, words: UInt64Array) -> None:
        super().__init__(words, restore=False)

    def has_drawn(self) -> bool:
        return self._rng is not None

    def _seed(self, word: int) -> None:
        self._word, self._rng = word, None


class NoSeeds(SampleSeeds):
    """Stands in for the seeds of samples that draw nothing: no generator is touched."""

    def __init__(self, samples: int) -> None:
        super().__init__(np.zeros(samples, dtype=np.uint64), restore=False)

    def enter_batch(self) -> None:
        self.row = None

    def has_drawn(self) -> bool:
        return False

    def _seed(self, word: int) -> None:
        pass

    def rng(self) -> np.random.Generator:
        raise RuntimeError(
            "sample_rng: the dataset (or collate_fn) has draws_nothing = True, so its samples have no seeds. Remove "
            "draws_nothing if it draws random numbers, or set draws_only_sample_rng = True instead."
        )
