"""Randomness that belongs to a sample: global generators are seeded around each sample, and restored afterwards."""

import os
import pickle
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.random import mtrand

from loaderkit.seeding.generators import generator
from loaderkit.seeding.keys import GOLDEN
from loaderkit.seeding.normals import kept_normal
from loaderkit.system.arrays import UInt64Array

T = TypeVar("T")
S = TypeVar("S")


class SeededGenerator(Protocol):
    """Seeds one random generator, or several together, from a sample's seed."""

    def seed(self, word: int) -> None:
        """Set the generator's state to the one that a 64-bit seed decides."""

    def state(self) -> object:
        """Return the generator's present state. Equal states must be equal when they are pickled."""

    def restore(self, state: Any) -> None:
        """Set the generator's state to one that `state` has returned."""


_seed_torch = torch.default_generator.manual_seed  # called for each sample


class _Current(threading.local):
    seeds: "SampleSeeds | None" = None
    private: Sequence[SeededGenerator] = ()  # generators that the data keeps for itself


_current = _Current()


class SampleSeeds:
    """A context in which `enter(row)` seeds torch, numpy and `random` for one sample of a batch.

    It also seeds the data's private generators that `using_private` names. numpy's global generator gets 32 bits of the
    seed, the others and `sample_rng()` get 64.

    The global generators belong to the process. With `restore`, another thread that enters such a context waits until
    this one leaves.

    Args:
        words: One 64-bit seed for each sample of the batch (N,).
        restore: Whether to restore the states of the generators on leaving. A worker process does not need that.
    """

    missed = False  # whether samples used a generator that was not seeded; known after leaving
    _numpy_bits = np.random.MT19937()
    _lock = threading.RLock()  # held while a thread's samples use the global generators

    def __init__(self, words: UInt64Array, *, restore: bool = True) -> None:
        self._words = words.tolist()
        self._restore = restore
        self._word = 0
        self._rng: np.random.Generator | None = None
        self._rows: Sequence[int] = range(len(self._words))  # rows of the batch that the current part reads
        self._stream = 0  # differs between parts of one sample that must draw independently
        self._private: Sequence[SeededGenerator] = ()
        self._numpy_seeded = self._random_seeded = True
        self.row: int | None = None  # the current sample; None while many are read at once

    def __enter__(self) -> Self:
        self._outer = _current.seeds
        self._private = _current.private
        if self._restore:
            SampleSeeds._lock.acquire()
            self._torch = torch.default_generator.get_state()
            self._random = random.getstate()
            # Another bit generator is faster than restoring 624 words, and `np.random.seed` needs an MT19937.
            self._bits = mtrand.get_bit_generator()
            self._numpy = np.random.get_state(legacy=False) if self._bits is self._numpy_bits else None
            self._normal = kept_normal(self._bits)
            mtrand.set_bit_generator(self._numpy_bits)
            self._private_states = [each.state() for each in self._private]
        _current.seeds = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.seeds = self._outer
        if self._restore:
            torch.default_generator.set_state(self._torch)
            random.setstate(self._random)
            mtrand.set_bit_generator(self._bits)
            if self._numpy is not None:
                np.random.set_state(self._numpy)
            elif self._normal is not None:  # `set_bit_generator` drops it
                np.random.set_state(np.random.get_state(legacy=False) | {"has_gauss": 1, "gauss": self._normal})
            for each, state in zip(self._private, self._private_states, strict=True):
                each.restore(state)
            SampleSeeds._lock.release()

    def enter(self, row: int) -> None:
        """Seed the generators for the sample in a row of the batch, or of the current `part`."""
        self.row = row = self._rows[row]
        self._seed(self._words[row] ^ self._stream)

    def enter_batch(self) -> None:
        """Seed the generators for the whole batch: for its collate, and for reads of many samples at once."""
        self.row = None
        self._seed(self._words[0] ^ GOLDEN)

    def continue_from(self, other: "SampleSeeds") -> None:
        """Enter the only sample of the batch, with the seed and the `sample_rng()` that `other` now has for it."""
        self.enter(0)
        if other._word:
            self._seed(other._word)
            self._rng = other._rng

    def pause(self) -> tuple[object, ...]:
        """Return the states of the generators, for `resume` in a later use of this context."""
        return torch.default_generator.get_state(), np.random.get_state(), random.getstate()

    def resume(self, reached: tuple[Any, ...]) -> None:
        """Set the generators to the states that `pause` returned."""
        torch_state, numpy_state, random_state = reached
        torch.default_generator.set_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(random_state)

    @contextmanager
    def part(self, number: int | None, rows: Sequence[int] | None = None) -> Iterator[None]:
        """Return a context that seeds a numbered part of each sample independently of the sample's other parts.

        With the number None, it keeps the sample's own seed. Inside, `enter(i)` enters row `rows[i]` of the batch; by
        default row i.
        """
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
        """Return the current sample's own Generator: the same object until the next `enter`."""
        if self._rng is None:
            self._rng = generator(self._word)
        return self._rng

    def has_drawn(self) -> bool:
        """Return whether anything was drawn since the current sample was entered. Seed the generators for it again."""
        drawn = self._rng is not None
        before = self._states()
        self._seed(self._word)
        return drawn or before != self._states()

    def _seed(self, word: int) -> None:
        self._word, self._rng = word, None
        _seed_torch(word)
        if self._numpy_seeded:
            np.random.seed(word & 0xFFFFFFFF)
        if self._random_seeded:
            random.seed(word)
        for each in self._private:
            each.seed(word)

    def _states(self) -> bytes:
        private = [each.state() for each in self._private]
        return pickle.dumps((torch.get_rng_state().numpy(), np.random.get_state(), random.getstate(), private))


@contextmanager
def using_private(generators: Sequence[SeededGenerator]) -> Iterator[None]:
    """Return a context in which the seed of each sample that is entered also seeds these generators."""
    outer, _current.private = _current.private, generators
    try:
        yield
    finally:
        _current.private = outer


def _new_lock() -> None:
    SampleSeeds._lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)  # the thread that holds the lock does not exist in the child


def sample_rng() -> np.random.Generator:
    """Return the current sample's own numpy Generator.

    Call it in a dataset, transform or collate. Its draws depend on the loader's seed, the epoch and the sample's
    position alone. Outside a loader, as in `dataset[0]`, it is a new Generator that is seeded from numpy's global one.

    Examples:
        >>> class Noise:
        ...     draws_only_sample_rng = True
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         return lk.sample_rng().random()
        >>> first, second = (torch.cat(list(lk.Loader(Noise(), 2, seed=3))) for _ in range(2))
        >>> torch.equal(first, second)
        True
    """
    seeds = _current.seeds
    if seeds is None:
        return np.random.default_rng(np.random.randint(0, 2**31, size=4))
    return seeds.rng()


def per_sample(function: Callable[[S], T], samples: Iterable[S]) -> list[T]:
    """Apply a function to each sample of the batch, under that sample's seed.

    Call it in a dataset's `__getitems__`, with the samples of that call in their order. Outside a loader it is a plain
    loop.

    Args:
        function: Called with one sample.
        samples: What the function is called with, in the order of the batch.

    Returns:
        The results, in the same order.
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
    """Read a part of the batch; inside, `per_sample` draws independently of other parts.

    A dataset needs this if its `__getitems__` reads from other datasets.

    Args:
        number: The part's number. Each part of a sample needs a different number.
        rows: The rows of the call that are read inside; all by default.
    """
    seeds = _current.seeds
    if seeds is None:
        yield
        return
    with seeds.part(number, rows):
        yield


@contextmanager
def seeds_apart(seeds: SampleSeeds, rows: Sequence[int] | None = None) -> Iterator[None]:
    """Read samples under other seeds; the draws of the batch's own samples do not change.

    Args:
        seeds: The seeds to use inside.
        rows: The batch rows of these samples, counted in the current `part`, so that an error names the right row. None
            if all samples belong to the current one.
    """
    outer = _current.seeds
    try:
        with seeds:
            yield
    except Exception:
        if outer is not None and rows is not None and seeds.row is not None:
            outer.row = outer._rows[rows[seeds.row]]
        raise
