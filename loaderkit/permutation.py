"""Shuffling without a list: a keyed permutation of [0, n) that can be evaluated at any position.

Below 2**20 it is a true permutation, drawn element by element. Above, it is a
Feistel network over Z_a x Z_b with a and b near the square root of n (Black and
Rogaway, "Ciphers with arbitrary finite domains", 2002): a * b is just above n, so
that cycle walking touches fewer than one position in a. This order is a public
contract: changing a bit of it needs a new version in the orders' keys.
"""

import math
from typing import Any

import numpy as np

from loaderkit.seeding import Int64Array, UInt64Array, derive_seed

SMALL = 1 << 20
ROUNDS = 6  # with 3 or 4 the displacement test fails
_BLOCK = 1 << 14  # positions at a time: the temporaries stay in a core's cache


def permute(positions: Int64Array, size: int, seed: int, epoch: int, cache: dict[int, Any]) -> Int64Array:
    """Return where the permutation of (seed, epoch) sends positions (N,).

    Args:
        positions: In [0, size).
        size: Number of elements, less than 2**62.
        seed: With `epoch`, the permutation's key.
        epoch: See seed.
        cache: Holds one epoch's table, and is written here.
    """
    table = _table(size, seed, epoch, cache)
    if isinstance(table, _Feistel):
        return table.at(positions)
    return np.take(table, positions)


def permute_stretch(start: int, stop: int, size: int, seed: int, epoch: int, cache: dict[int, Any]) -> Int64Array:
    """Return where the permutation sends [start, stop): as `permute`, without a look-up for each position."""
    table = _table(size, seed, epoch, cache)
    if isinstance(table, _Feistel):
        return table.at(np.arange(start, stop, dtype=np.int64))
    return table[start:stop].copy()


def _table(size: int, seed: int, epoch: int, cache: dict[int, Any]) -> "Int64Array | _Feistel":
    if epoch not in cache:
        table = _drawn_permutation(size, seed, epoch) if size < SMALL else _Feistel(size, seed, epoch)
        cache.clear()
        cache[epoch] = table
    found: Int64Array | _Feistel = cache[epoch]
    return found


def _drawn_permutation(size: int, seed: int, epoch: int) -> Int64Array:
    """Draw a permutation (Fisher and Yates) by numpy's RandomState, whose streams are frozen for good (NEP 19)."""
    drawn = np.random.RandomState(np.random.PCG64DXSM(derive_seed("shuffle", seed, epoch))).permutation(size)
    return drawn.astype(np.int64, copy=False)


class _Feistel:
    """x = left * b + right, and in turn left += F(right) mod a, right += F(left) mod b."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        a = math.isqrt(size - 1) + 1
        b = -(-size // a)
        self._size, self._a, self._b = np.uint64(size), np.uint64(a), np.uint64(b)
        self._keys = [np.uint64(derive_seed("feistel", seed, epoch, number)) for number in range(ROUNDS)]

    def at(self, positions: Int64Array) -> Int64Array:
        result = np.empty(len(positions), dtype=np.int64)
        for start in range(0, len(positions), _BLOCK):
            block = self._walk(positions[start : start + _BLOCK].astype(np.uint64))
            result[start : start + _BLOCK] = block.view(np.int64)
        return result

    def _walk(self, x: UInt64Array) -> UInt64Array:
        x = self._encrypt(x)
        outside = np.flatnonzero(x >= self._size)
        while outside.size:
            walked = self._encrypt(x[outside])
            x[outside] = walked
            outside = outside[walked >= self._size]
        return x

    def _encrypt(self, x: UInt64Array) -> UInt64Array:
        left = x // self._b
        right = x - left * self._b
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                left = _add(left, _hash(right, key, self._a), self._a)
            else:
                right = _add(right, _hash(left, key, self._b), self._b)
        left *= self._b
        left += right
        return left


def _add(x: UInt64Array, y: UInt64Array, modulus: np.uint64) -> UInt64Array:
    """Return x + y mod modulus for x, y below it: the wrapped difference is huge where none is due."""
    x = x + y
    reduced: UInt64Array = np.minimum(x, x - modulus)
    return reduced


def _hash(x: UInt64Array, key: np.uint64, modulus: np.uint64) -> UInt64Array:
    """Return a keyed hash in [0, modulus), modulus at most 2**32, by multiply-high (Lemire, 2019)."""
    x = x ^ key
    x *= np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xD6E8FEB86659FD93)
    x >>= np.uint64(32)
    x *= modulus
    x >>= np.uint64(32)
    return x
