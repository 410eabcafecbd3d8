"""Seeds for samples that may draw nothing: numpy and `random` are seeded only for data that uses them."""

import functools
import random
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.random import mtrand

from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.system.arrays import UInt64Array

GlobalPolicy = Literal["watch", "seed"]

_FIRST = 32  # samples that are seeded before generators can count as unused
_WORD = 0x6C6F6164  # seeds a generator that should not be used; a batch that used it is thrown away


@dataclass(slots=True)
class Used:
    """What the data of one reader used so far, in this process.

    Attributes:
        numpy: Whether it used numpy's global generator.
        random: Whether it used that of `random`.
        samples: How many samples were read, of the first.
    """

    numpy: bool = False
    random: bool = False
    samples: int = 0


class WatchedSeeds(SampleSeeds):
    """Seeds for a batch of data that may draw nothing.

    torch's generator is seeded for each sample, because that is cheap, and nothing tells whether its seed was read. So are those
    of numpy and `random` if the data `used` them. If the batch uses another one, it is `missed`: the batch has to be made
    again. If not, the batch is what it would be if all were seeded.

    Args:
        words: One 64-bit seed for each sample of the batch (N,).
        used: What the data used before; kept up to date.
        restore: Whether to restore the caller's generators on leaving.
    """

    _one = threading.Lock()  # held while samples are watched

    def __init__(self, words: UInt64Array, used: Used, *, restore: bool = True) -> None:
        super().__init__(words, restore=restore)
        self._used = used
        self._watches = False
        self._known: int | None = _WORD  # what both generators were seeded by last

    def __enter__(self) -> Self:
        super().__enter__()
        used = self._used
        # Inside another sample, the state that is left behind is part of that sample's draws.
        self._watches = self._outer is None and not (used.numpy and used.random) and self._one.acquire(blocking=False)
        if self._watches:
            self._bits_before = mtrand.get_bit_generator()
            mtrand.set_bit_generator(_bits)
            _random.__class__ = WatchedRandom
            self._begin()
            _bits.touched = WatchedRandom.touched = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watches:
            used = self._used
            self._look()
            self.missed = (used.numpy and not self._numpy_seeded) or (used.random and not self._random_seeded)
            used.samples += len(self._words)
            self._watches = False
            _random.__class__ = random.Random
            mtrand.set_bit_generator(self._bits_before)
            self._one.release()
        super().__exit__(kind, error, trace)

    def _begin(self) -> None:
        self._numpy_seeded, self._random_seeded = self._used.numpy, self._used.random
        if not self._numpy_seeded:
            np.random.seed(_WORD)
        if not self._random_seeded:
            random.seed(_WORD)

    def _look(self) -> None:
        """Note what was used since both generators were seeded."""
        if self._known is not None:
            self._used.numpy = self._used.numpy or numpy_was_used(self._known)
            self._used.random = self._used.random or random_was_used(self._known)


class FirstSeeds(WatchedSeeds):
    """Seeds for the first samples of a reader: all generators are seeded, and tell which are used."""

    def _begin(self) -> None:
        self._known = None

    def _seed(self, word: int) -> None:
        if self._watches:
            self._look()
            self._known = word
        super()._seed(word)
        if self._watches:
            _bits.touched = WatchedRandom.touched = False


def watched_seeds(words: UInt64Array, used: Used, *, restore: bool) -> WatchedSeeds:
    """Return the seeds of a batch: the first samples of a reader are seeded in any case, so that few batches are made again."""
    return (FirstSeeds if used.samples < _FIRST else WatchedSeeds)(words, used, restore=restore)


# numpy compares this name with that in a state, so it has to be that of its own class.
class MT19937(np.random.MT19937):
    """numpy's bit generator, which also notes that its state was read or set."""

    touched = False

    @property
    def state(self) -> Any:
        self.touched = True
        return super().state

    @state.setter
    def state(self, value: Any) -> None:
        self.touched = True
        np.random.MT19937.state.__set__(self, value)  # type: ignore[attr-defined]  # a property


class WatchedRandom(random.Random):
    """The class of the generator of `random` while it is watched: notes that its state was read."""

    touched = False

    @property
    def VERSION(self) -> int:  # type: ignore[override]  # noqa: N802  # `getstate` puts it into each state
        WatchedRandom.touched = True
        return random.Random.VERSION


# Both draw 128 bits and compare them: other states give the same ones as often as a guess does.


def numpy_was_used(word: int) -> bool:
    """Return whether numpy's global generator was drawn from, read or set since it was seeded by a word."""
    drawn = mtrand.get_bit_generator().random_raw(4).tobytes()
    return _bits.touched or drawn != _numpy_draws(word & 0xFFFFFFFF)


def random_was_used(word: int) -> bool:
    """Return whether the generator of `random` was drawn from, read or set since it was seeded by a word."""
    return WatchedRandom.touched or random.getrandbits(128) != _random_draws(word)


@functools.lru_cache(maxsize=1)
def _numpy_draws(word: int) -> bytes:
    _twin.seed(word)
    return _twin_bits.random_raw(4).tobytes()


@functools.lru_cache(maxsize=1)
def _random_draws(word: int) -> int:
    _twin_random.seed(word)
    return _twin_random.getrandbits(128)


_bits, _twin_bits = MT19937(0), np.random.MT19937(0)
_random: random.Random = random.seed.__self__  # type: ignore[attr-defined]  # the functions of `random` are its methods
_twin, _twin_random = np.random.RandomState(_twin_bits), random.Random(0)
