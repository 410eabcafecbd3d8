"""Shuffling without a list: a keyed permutation of [0, n) that can be evaluated at any position.

Below 2**20 elements it is a true permutation: the positions, sorted by random words. Above, it is a Feistel network over
Z_a x Z_b, with a and b near the square root of n. See Black and Rogaway, "Ciphers with arbitrary finite domains", 2002.
a * b is just above n, so cycle walking touches fewer than one position in a. The result is a public contract: a change of
any bit needs a new version in the orders' keys.
"""

import math
from collections.abc import Callable

import numpy as np

from loaderkit.seeding.keys import derive_seed
from loaderkit.system.arrays import Int64Array, UInt64Array

_SMALL = 1 << 20
_HIGH = np.uint64(48)
_ROUNDS = 6  # with 3 or 4 the displacement test fails
_BLOCK = 1 << 17  # positions at a time, so that temporaries stay in caches


def permutation(size: int, seed: int, epoch: int) -> Callable[[Int64Array], Int64Array]:
    """Return a function from positions (N,) to the elements there. `size` is below 2**62."""
    if size >= _SMALL:
        return FeistelPermutation(size, seed, epoch).at
    # The stream of this generator is frozen for good (NEP 19).
    return drawn_permutation(size, np.random.PCG64DXSM(derive_seed("shuffle", seed, epoch))).take


def drawn_permutation(size: int, bits: np.random.BitGenerator) -> Int64Array:
    """Return a permutation (size,): random words, sorted, that carry their positions in their lowest bits.

    A Fisher-Yates shuffle of a million elements takes up to three times as long, because it swaps distant ones. If the
    random parts of two words are equal, all words are drawn again, which makes all permutations equally likely.
    """
    low = np.uint64((1 << (size - 1).bit_length()) - 1)
    while True:
        words: UInt64Array = bits.random_raw(size)
        words &= ~low
        words |= np.arange(size, dtype=np.uint64)
        # By their highest 16 bits, which numpy does by radix, then by a sort for what is almost in order. On some CPUs its
        # quicksort takes twice to three times as long.
        words = words[np.argsort((words >> _HIGH).astype(np.uint16), kind="stable")]
        words.sort(kind="stable")
        if not bool((words[1:] ^ words[:-1] <= low).any()):
            break
    words &= low
    return words.view(np.int64)


class FeistelPermutation:
    """A permutation of [0, size): x = left * b + right; in turn left += F(right) mod a and right += F(left) mod b.

    The key is (seed, epoch). Only tests use other `rounds`.
    """

    def __init__(self, size: int, seed: int, epoch: int, *, rounds: int = _ROUNDS) -> None:
        a = math.isqrt(size - 1) + 1
        b = -(-size // a)
        self._size, self._a, self._b = np.uint64(size), np.uint64(a), np.uint64(b)
        self._keys = [np.uint64(derive_seed("feistel", seed, epoch, number)) for number in range(rounds)]

    def at(self, positions: Int64Array) -> Int64Array:
        """Return the elements (N,) at positions (N,)."""
        result = positions.astype(np.uint64)
        # Allocated once: touching new memory takes longer than the arithmetic.
        room = np.empty((4, min(_BLOCK, len(result))), dtype=np.uint64)
        for start in range(0, len(result), _BLOCK):
            block = result[start : start + _BLOCK]
            self._encrypt(block, room)
            outside = np.flatnonzero(block >= self._size)
            while outside.size:  # cycle walking
                walked = block[outside]
                self._encrypt(walked, room)
                block[outside] = walked
                outside = outside[walked >= self._size]
        return result.view(np.int64)

    def _encrypt(self, x: UInt64Array, room: UInt64Array) -> None:
        left, right, hashed, spare = room[:, : len(x)]
        np.floor_divide(x, self._b, out=left)
        np.multiply(left, self._b, out=hashed)
        np.subtract(x, hashed, out=right)
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                _hash(right, key, self._a, hashed, spare)
                _add(left, hashed, self._a, spare)
            else:
                _hash(left, key, self._b, hashed, spare)
                _add(right, hashed, self._b, spare)
        np.multiply(left, self._b, out=x)
        x += right


def _add(x: UInt64Array, y: UInt64Array, modulus: np.uint64, spare: UInt64Array) -> None:
    """Set x to x + y mod modulus; both are below it. If x + y needs no reduction, the wrapped difference is the larger."""
    x += y
    np.subtract(x, modulus, out=spare)
    np.minimum(x, spare, out=x)


def _hash(x: UInt64Array, key: np.uint64, modulus: np.uint64, out: UInt64Array, spare: UInt64Array) -> None:
    """Write a keyed hash in [0, modulus), modulus at most 2**32, by multiply-high (Lemire, 2019)."""
    np.bitwise_xor(x, key, out=out)
    out *= np.uint64(0x9E3779B97F4A7C15)
    np.right_shift(out, np.uint64(32), out=spare)
    out ^= spare
    out *= np.uint64(0xD6E8FEB86659FD93)
    out >>= np.uint64(32)
    out *= modulus
    out >>= np.uint64(32)
