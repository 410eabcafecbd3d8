"""What data, transforms and collates say of the random numbers that they draw, and what they are given to draw from."""

from enum import IntEnum
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import TensorDataset

from loaderkit.seeding.samples import SampleSeeds
from loaderkit.system.arrays import UInt64Array
from loaderkit.system.overrides import overridden_below

_PLAIN = (list, tuple, range, np.ndarray, Tensor, TensorDataset)  # and no classes made of them
_METHODS = frozenset({"__getitem__", "__getitems__", "read", "__call__", "forward"})


class Draws(IntEnum):
    """Where random numbers are drawn from, if any are."""

    NOTHING = 0
    SAMPLE_RNG = 1  # `lk.sample_rng()` alone
    ANYTHING = 2  # torch's, numpy's and random's global generators, too


class SaysDraws:
    """Brings `draws_nothing` and `draws_only_sample_rng` to an adapter, by its `_draws`."""

    @property
    def draws_nothing(self) -> bool:
        """Whether reading samples surely draws no random numbers."""
        return self._draws() is Draws.NOTHING

    @property
    def draws_only_sample_rng(self) -> bool:
        """Whether samples draw from `lk.sample_rng()`, if they draw."""
        return self._draws() is not Draws.ANYTHING

    def _draws(self) -> Draws:
        """Return what reading a sample draws from: what its `transform` does, where it has one."""
        transform = getattr(self, "transform", None)
        return Draws.NOTHING if transform is None else draws(transform)


def draws(value: Any) -> Draws:
    """Return what a dataset, transform or collate says by `draws_nothing` or `draws_only_sample_rng`, its attributes.

    A class that reads samples, or is called, in a way of its own has to say so itself.
    """
    if draws_nothing(value):
        return Draws.NOTHING
    return Draws.SAMPLE_RNG if _says(value, "draws_only_sample_rng") else Draws.ANYTHING


def draws_nothing(value: Any) -> bool:
    """Say whether a dataset, transform or collate surely draws no random numbers, nor asks for `lk.sample_rng()`."""
    return type(value) in _PLAIN or _says(value, "draws_nothing")


def _says(value: Any, name: str) -> bool:
    return getattr(value, name, False) is True and not overridden_below(value, name, _METHODS)


class OwnSeeds(SampleSeeds):
    """The seeds of samples that draw from `sample_rng()` alone: the global generators are left to the caller."""

    def __init__(self, words: UInt64Array) -> None:
        super().__init__(words, restore=False)

    def enter(self, row: int) -> None:
        self.row = row = self._rows[row]
        self._word = self._words[row] ^ self._stream
        self._rng = None

    def _seed(self, word: int) -> None:
        self._word, self._rng = word, None


class Unseeded(SampleSeeds):
    """Stands in for the seeds of samples that draw nothing: the generators are left to the caller."""

    def __init__(self, samples: int) -> None:
        super().__init__(np.zeros(samples, dtype=np.uint64), restore=False)

    def enter(self, row: int) -> None:
        self.row = self._rows[row]

    def enter_batch(self) -> None:
        self.row = None

    def rng(self) -> np.random.Generator:
        raise RuntimeError(
            "sample_rng: the dataset (or collate_fn) says draws_nothing, so that there are no seeds. Leave that out where something "
            "is drawn, or say draws_only_sample_rng instead."
        )
