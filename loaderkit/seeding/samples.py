"""Randomness that belongs to a sample: seeds from keys, and generators that are left as they were."""

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.random.mtrand as np_random
import torch

from loaderkit.seeding.generators import Generators
from loaderkit.seeding.keys import GOLDEN
from loaderkit.system.arrays import UInt64Array

T = TypeVar("T")
S = TypeVar("S")

# Bound once: this runs for each sample. `random.seed` checks its argument's type for as long as it takes to seed torch.
_random: Any = random.seed.__self__  # type: ignore[attr-defined]  # the module's own generator
_seed_random: Callable[[int], None] = super(random.Random, _random).seed
_seed_numpy = np.random.seed
_seed_torch = torch.default_generator.manual_seed


class _Current(threading.local):
    seeds: "SampleSeeds | None" = None


_current = _Current()


class SampleSeeds:
    """The seeds of one batch's samples, as a context in which global generators are ours.

    Inside, `enter(i)` seeds torch, numpy and `random` for sample i. On leaving,
    the caller's generators stand where they stood (unless `restore` is off, as
    in a worker process, where nobody else draws from them).

    The generators are the process's: another thread that reads samples waits until they are given back.

    numpy's global generator is seeded with 32 bits, `sample_rng()` with 64.
    """

    _numpy_bits = np.random.MT19937()
    _turn = threading.RLock()  # of the thread whose samples the generators are seeded for

    def __init__(self, words: UInt64Array, *, restore: bool = True) -> None:
        self._words = words.tolist()
        self._restore = restore
        self._word = 0
        self._rng: np.random.Generator | None = None
        self._generators = Generators()
        self._rows: Sequence[int] = range(len(self._words))  # of the samples being read, in the batch
        self._stream = 0  # differs between the parts of a sample that draw apart
        self.row: int | None = None  # the sample entered last; None where many are read at once

    def __enter__(self) -> Self:
        self._outer = _current.seeds
        if self._restore:
            SampleSeeds._turn.acquire()
            self._torch = torch.default_generator.get_state()
            self._random = random.getstate()
            self._bits = np_random.get_bit_generator()
            # Not the words alone: set_bit_generator() forgets a kept normal deviate.
            whole = self._bits is self._numpy_bits or _numpy_keeps_normal()
            self._numpy: Any = np.random.get_state(legacy=False) if whole else None
            np_random.set_bit_generator(self._numpy_bits)
        _current.seeds = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.seeds = self._outer
        if self._restore:
            torch.default_generator.set_state(self._torch)
            random.setstate(self._random)
            np_random.set_bit_generator(self._bits)
            if self._numpy is not None:
                np.random.set_state(self._numpy)
            SampleSeeds._turn.release()

    def enter(self, row: int) -> None:
        """Make the randomness that of sample number `row` of those being read."""
        self.row = row = self._rows[row]
        self._word = word = self._words[row] ^ self._stream
        self._rng = None
        # As in _seed, without another call: this runs for each sample.
        _seed_torch(word)
        _seed_numpy(word & 0xFFFFFFFF)
        _seed_random(word)
        _random.gauss_next = None

    def enter_batch(self) -> None:
        """Make the randomness that of the batch as a whole, for its collate and for reads of many at once."""
        self.row = None
        self._seed(self._words[0] ^ GOLDEN)

    def go_on(self, before: "SampleSeeds") -> None:
        """Stand in the batch's only sample, where seeds that left the global generators alone stand in it."""
        self.enter(0)
        if before._word:
            self._seed(before._word)
            self._rng = before._rng

    def _seed(self, word: int) -> None:
        self._word = word
        self._rng = None
        _seed_torch(word)
        _seed_numpy(word & 0xFFFFFFFF)
        _seed_random(word)
        _random.gauss_next = None

    @contextmanager
    def part(self, number: int | None, rows: Sequence[int] | None = None) -> Iterator[None]:
        """Within, `enter(i)` means the i-th of the rows, and draws are of part `number` of the samples (None: as without)."""
        outer = self._rows, self._stream
        if rows is not None:
            self._rows = [self._rows[row] for row in rows]
        if number is not None:
            self._stream = (self._stream + number + 1) * GOLDEN % 2**64
        try:
            yield
        finally:
            self._rows, self._stream = outer

    def rng(self) -> np.random.Generator:
        """Return the current sample's own generator, the same object until the next `enter`."""
        if self._rng is None:
            self._rng = self._generators.of(self._word)
        return self._rng


def _new_turn() -> None:
    SampleSeeds._turn = threading.RLock()


os.register_at_fork(after_in_child=_new_turn)  # the thread that has the turn is not in the child


class _NoWords:
    state: ClassVar[dict[str, Any]] = {"bit_generator": ""}


def _numpy_keeps_normal() -> bool:
    """Say whether numpy's global generator keeps a normal deviate for its next draw.

    Its whole state says it too, and takes a hundred times as long: 624 words go through Python.
    """
    generator: Any = np_random._rand
    bits = getattr(generator, "_bit_generator", None)
    if bits is None:
        return True  # another numpy: then its whole state is kept
    try:
        generator._bit_generator = _NoWords
        return bool(generator.get_state(legacy=False)["has_gauss"])
    finally:
        generator._bit_generator = bits


def sample_rng() -> np.random.Generator:
    """Return the current sample's own numpy Generator, for use in a dataset, transform or collate.

    It is a function of the loader's seed, the epoch and the sample's position.
    Outside a loader, as in `dataset[0]` by hand, it is a new generator seeded
    from numpy's global one.
    """
    seeds = _current.seeds
    if seeds is None:
        return np.random.default_rng(np.random.randint(0, 2**31, size=4))
    return seeds.rng()


def per_sample(function: Callable[[S], T], samples: Iterable[S]) -> list[T]:
    """Apply a function to each sample of the batch being read, under that sample's seed.

    For a dataset's `__getitems__`: the samples have to be those of the call, in
    their order. Outside a loader it is a plain loop.
    """
    seeds = _current.seeds
    if seeds is None:
        return [function(sample) for sample in samples]
    results = []
    for row, sample in enumerate(samples):
        seeds.enter(row)
        results.append(function(sample))
    seeds.row = None
    return results


@contextmanager
def part_of_batch(number: int, rows: Sequence[int] | None = None) -> Iterator[None]:
    """Read a part of the batch's samples: within, `per_sample` draws apart from other parts.

    For a dataset's `__getitems__` that asks other datasets.

    Args:
        number: Tells the parts of one sample apart.
        rows: Which of the call's samples are read within; all by default.
    """
    seeds = _current.seeds
    if seeds is None:
        yield
        return
    with seeds.part(number, rows):
        yield
