"""numpy Generators, each from one 64-bit seed."""

from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

from loaderkit.system.types import Array


class Key:
    """A seed sequence that gives Philox the seed itself as its key.

    `np.random.Philox(key=...)` gives the same numbers, but first reads entropy from the system. That takes more than
    half of its time.
    """

    __slots__ = ("_seed", "_sequence")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sequence: np.random.SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Array:
        """Return the words that numpy asks for: Philox gets its key, other bit generators a SeedSequence's words."""
        if n_words == 2 and dtype is np.uint64:
            return np.array((self._seed, 0), dtype=np.uint64)
        return self._hashed().generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[np.random.SeedSequence]:
        """Return child seed sequences, as `np.random.SeedSequence.spawn` does."""
        return self._hashed().spawn(n_children)

    def _hashed(self) -> np.random.SeedSequence:
        if self._sequence is None:
            self._sequence = np.random.SeedSequence(self._seed)
        return self._sequence


ISpawnableSeedSequence.register(Key)


def generator(seed: int) -> np.random.Generator:
    """Return a new Generator that draws what `np.random.Philox(key=seed)` draws, for a seed below 2**64."""
    return np.random.Generator(np.random.Philox(Key(seed)))  # type: ignore[arg-type]  # numpy's ABC knows it at run time
