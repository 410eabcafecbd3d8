"""Seed each kind of random generator from a sample's seed, in place."""

import ctypes
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from loaderkit.seeding.keys import derive_seed
from loaderkit.seeding.sample_seeds import SeededGenerator
from loaderkit.system.worker_info import in_worker_process

UInt32Array = npt.NDArray[np.uint32]

_PCG64 = {np.random.PCG64: "PCG64", np.random.PCG64DXSM: "PCG64DXSM"}
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645  # of PCG64
_128_BITS = 2**128 - 1


def seeded(generator: Any, path: str) -> SeededGenerator | None:
    """Return a SeededGenerator for a generator; None if nothing can seed it.

    One sample's seed gives other numbers to a generator at another path.
    """
    salt = derive_seed("private generator", path)
    if isinstance(generator, torch.Generator):
        # A worker cannot use a device that the trainer uses.
        is_usable = generator.device.type == "cpu" or not in_worker_process()
        return _Torch(generator, salt) if is_usable else None
    if isinstance(generator, random.Random):
        return _Python(generator, salt)
    if isinstance(generator, np.random.RandomState):
        is_usual = type(generator._bit_generator) is np.random.MT19937
        return _MersenneTwister(generator, salt) if is_usual else None
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
    if type(bits) in _PCG64:
        return _Pcg64(bits, salt)
    return _Bits(bits, salt) if type(bits).__module__.startswith("numpy.") else None


class _Torch:
    def __init__(self, generator: torch.Generator, salt: int) -> None:
        self._generator, self._salt = generator, salt

    def seed(self, word: int) -> None:
        self._generator.manual_seed(word ^ self._salt)

    def state(self) -> npt.NDArray[np.uint8]:
        state: npt.NDArray[np.uint8] = self._generator.get_state().numpy()
        return state

    def restore(self, state: npt.NDArray[np.uint8]) -> None:
        self._generator.set_state(torch.from_numpy(state))


class _Python:
    def __init__(self, generator: random.Random, salt: int) -> None:
        self._generator, self._salt = generator, salt

    def seed(self, word: int) -> None:
        self._generator.seed(word ^ self._salt)

    def state(self) -> object:
        return self._generator.getstate()

    def restore(self, state: Any) -> None:
        self._generator.setstate(state)


class _Bits:
    """Seeds a bit generator of numpy, alone or in a Generator."""

    def __init__(self, bits: Any, salt: int) -> None:
        self._bits, self._salt = bits, salt

    def seed(self, word: int) -> None:
        self._bits.state = type(self._bits)(word ^ self._salt).state

    def state(self) -> object:
        return self._bits.state

    def restore(self, state: Any) -> None:
        self._bits.state = state


class _Pcg64(_Bits):
    """Seeds PCG64 from 64 bits, as its author does (O'Neill 2014). numpy's SeedSequence takes seven times as long."""

    def seed(self, word: int) -> None:
        word ^= self._salt
        increment = word << 64 | word | 1
        self._bits.state = {
            "bit_generator": _PCG64[type(self._bits)],
            "state": {"state": ((increment + word) * _MULTIPLIER + increment) & _128_BITS, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }


class _MersenneTwister:
    """Seeds a RandomState. The state is read and written in memory, in 2 us; numpy's methods take 60 us."""

    def __init__(self, generator: np.random.RandomState, salt: int) -> None:
        self._generator, self._salt = generator, salt & 0xFFFFFFFF  # seeding from 32 bits is five times as fast
        address = generator._bit_generator.ctypes.state_address
        self._restored: UInt32Array | None = None  # the words at the last `restore`, if that kept no normal deviate
        self._memory = np.ctypeslib.as_array((ctypes.c_uint32 * 625).from_address(address))  # 624 words, position

    def seed(self, word: int) -> None:
        self._generator.seed((word ^ self._salt) & 0xFFFFFFFF)

    def state(self) -> tuple[UInt32Array, Any]:
        """Return the state's words (625,), and the whole state too if it keeps a normal deviate for the next draw."""
        words = self._memory.copy()
        if self._restored is not None and np.array_equal(words, self._restored):  # nothing was drawn since
            return words, None
        whole: Any = self._generator.get_state(legacy=False)
        return words, whole if whole["has_gauss"] else None

    def restore(self, state: tuple[UInt32Array, Any]) -> None:
        words, whole = state
        if whole is not None:
            self._generator.set_state(whole)
            self._restored = None
            return
        self._generator.seed(0)  # makes it forget a normal deviate
        self._memory[:] = words
        self._restored = words


class AlbumentationsPair:
    """Seeds all transforms of albumentations (`owners`) together.

    Each transform has two generators. While samples are seeded, one pair of generators takes the place of those in all
    transforms, as by their `set_random_state`, and only this pair is seeded. Seeding the generators of each transform
    would take as long as a transform.
    """

    def __init__(self) -> None:
        self.owners: Sequence[Any] = ()
        self._own: list[tuple[object, object]] | None = None  # generators of the owners, while they draw from the pair
        self._python, self._numpy = random.Random(0), np.random.Generator(np.random.PCG64(0))
        self._seeds: list[SeededGenerator] = [
            _Python(self._python, derive_seed("private generator", "albumentations", "py_random")),
            _Pcg64(self._numpy.bit_generator, derive_seed("private generator", "albumentations", "random_generator")),
        ]

    @staticmethod
    def is_for(value: object) -> bool:
        """Return whether an object is a transform of albumentations that keeps a pair of generators."""
        names = getattr(value, "__dict__", {}).keys()
        return {"py_random", "random_generator"} <= names and _is_albumentations(value)

    def seed(self, word: int) -> None:
        if self._own is None:
            self._own = [(owner.py_random, owner.random_generator) for owner in self.owners]
            for owner in self.owners:
                owner.py_random, owner.random_generator = self._python, self._numpy
        for each in self._seeds:
            each.seed(word)

    def state(self) -> list[object] | None:
        """Return the pair's state; None if the transforms draw from their own generators, which are untouched."""
        return None if self._own is None else [each.state() for each in self._seeds]

    def restore(self, state: list[object] | None) -> None:
        if state is not None:
            for each, old in zip(self._seeds, state, strict=True):
                each.restore(old)
        elif self._own is not None:
            for owner, own in zip(self.owners, self._own, strict=True):
                owner.py_random, owner.random_generator = own
            self._own = None


def _is_albumentations(value: object) -> bool:
    return any(kind.__module__.startswith("albumentations.") for kind in type(value).__mro__)


class NativeGenerator:
    """Seeds the generators of a library in another language by calling a function. Their state cannot be restored."""

    def __init__(self, function: Callable[[int], object], bits: int = 32) -> None:
        self._function, self._mask = function, (1 << bits) - 1

    def seed(self, word: int) -> None:
        self._function(word & self._mask)

    def state(self) -> None:
        return None

    def restore(self, state: None) -> None:
        pass
