"""numpy Generators from a word each, in less than half of the time that numpy takes with a key: it asks the system for entropy first."""

from sys import getrefcount
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISpawnableSeedSequence


class Key:
    """A word as what numpy's Philox takes for a seed: its key is the word. What else is asked comes from a SeedSequence of it."""

    __slots__ = ("_sequence", "_word")

    def __init__(self, word: int) -> None:
        self.be(word)

    def be(self, word: int) -> None:
        self._word = word
        self._sequence: np.random.SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        if n_words == 2 and dtype is np.uint64:
            return np.array((self._word, 0), dtype=np.uint64)
        return self._whole().generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Any]:
        return self._whole().spawn(n_children)

    def _whole(self) -> np.random.SeedSequence:
        if self._sequence is None:
            self._sequence = np.random.SeedSequence(self._word)
        return self._sequence


ISpawnableSeedSequence.register(Key)


def generator(word: int) -> np.random.Generator:
    """Return the Philox generator whose key is a word below 2**64, as `np.random.Philox(key=word)` is."""
    return np.random.Generator(np.random.Philox(Key(word)))  # type: ignore[arg-type]  # it is registered


class Generators:
    """Generators of words, one after the other.

    Whom nobody else holds any more is given again for another word, in a sixth of the time that a new one takes.
    """

    __slots__ = ("_alone", "_bits", "_generator", "_key", "_state", "_words")

    def __init__(self) -> None:
        self._alone: tuple[int, ...] = ()

    def of(self, word: int) -> np.random.Generator:
        """Return `generator(word)`."""
        if self._alone and self._holders() == self._alone:
            self._key.be(word)
            self._words["key"] = word, 0
            self._bits.state = self._state
        else:
            self._make(word)
        return self._generator

    def _make(self, word: int) -> None:
        self._generator = generator(word)
        self._bits: Any = self._generator.bit_generator
        self._key: Any = self._bits.seed_seq
        self._alone = self._holders()
        # As a new one stands, but for its key; kept, as making it anew takes as long as setting it.
        self._words: dict[str, tuple[int, ...]] = {"counter": _ZEROS}
        self._state = _START | {"state": self._words}

    def _holders(self) -> tuple[int, ...]:
        return getrefcount(self._generator), getrefcount(self._bits), getrefcount(self._key)


_ZEROS = (0, 0, 0, 0)
_START: dict[str, Any] = {"bit_generator": "Philox", "buffer": _ZEROS, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
