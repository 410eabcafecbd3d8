"""Shuffling without a list: a keyed permutation of [0, n) that can be evaluated at any position.

Below 2**20 it is a true permutation: the positions, sorted by random words. Above, it is a
Feistel network over Z_a x Z_b with a and b near the square root of n (Black and
Rogaway, "Ciphers with arbitrary finite domains", 2002): a * b is just above n, so
that cycle walking touches fewer than one position in a. This order is a public
contract: changing a bit of it needs a new version in the orders' keys.
"""

import math
from typing import Any

import numpy as np

from loaderkit.seeding.keys import derive_seed
from loaderkit.system.arrays import Int64Array, UInt64Array

SMALL = 1 << 20
ROUNDS = 6  # with 3 or 4 the displacement test fails
_TABLE = 1 << 14  # the largest a whose tables, 15 * a words in all, stay in a core's cache
_BLOCK = 1 << 17  # positions at a time: the temporaries stay in caches, and threads seldom have to wait for each other


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


def _table(size: int, seed: int, epoch: int, cache: dict[int, Any]) -> "Int64Array | _Feistel":
    table: Int64Array | _Feistel | None = cache.get(epoch)
    if table is None:
        table = _drawn_permutation(size, seed, epoch) if size < SMALL else _Feistel(size, seed, epoch)
        cache.clear()
        cache[epoch] = table
    return table


def _drawn_permutation(size: int, seed: int, epoch: int) -> Int64Array:
    """Sort random words that carry their positions in their lowest bits.

    Fisher and Yates' shuffle takes up to three times as long for a million elements, as each of them is swapped with one that
    lies anywhere. Where two words are alike all are drawn again: so every permutation is as likely as any other.
    """
    low = np.uint64((1 << (size - 1).bit_length()) - 1)
    bits = np.random.PCG64DXSM(derive_seed("shuffle", seed, epoch))  # its stream is frozen for good (NEP 19)
    while True:
        words: UInt64Array = bits.random_raw(size)
        words &= ~low
        for start in range(0, size, _BLOCK):
            words[start : start + _BLOCK] |= np.arange(start, min(start + _BLOCK, size), dtype=np.uint64)
        words.sort()
        blocks = (words[start : start + _BLOCK + 1] for start in range(0, size, _BLOCK))
        if not any(bool((block[1:] ^ block[:-1] <= low).any()) for block in blocks):
            break
    words &= low
    return words.view(np.int64)


class _Feistel:
    """x = left * b + right, and in turn left += F(right) mod a, right += F(left) mod b.

    Where a and b are small, F is looked up, in half of the time and a third of the calls, and the sums are reduced at the end alone.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        a = math.isqrt(size - 1) + 1
        b = -(-size // a)
        self._size, self._a, self._b = np.uint64(size), np.uint64(a), np.uint64(b)
        self._keys = [np.uint64(derive_seed("feistel", seed, epoch, number)) for number in range(ROUNDS)]
        self._tables = [self._table(number) for number in range(ROUNDS)] if a <= _TABLE else []

    def _table(self, number: int) -> UInt64Array:
        """Return F of a round, for all that its side may have come to by then: a sum of as many terms as it was added to."""
        of_right = number % 2 == 0
        side, modulus = (self._b, self._a) if of_right else (self._a, self._b)
        values = np.arange(side, dtype=np.uint64)
        hashed = np.empty_like(values)
        _hash(values, self._keys[number], modulus, hashed, np.empty_like(values))
        return np.tile(hashed, number // 2 + (1 if of_right else 2))

    def at(self, positions: Int64Array) -> Int64Array:
        result = positions.astype(np.uint64)
        # Made once: to touch memory that is new takes longer than the arithmetic.
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
        if self._tables:
            self._look_up(left, right, hashed)
        else:
            self._compute(left, right, hashed, spare)
        np.multiply(left, self._b, out=x)
        x += right

    def _look_up(self, left: UInt64Array, right: UInt64Array, hashed: UInt64Array) -> None:
        for number, table in enumerate(self._tables):
            source, target = (right, left) if number % 2 == 0 else (left, right)
            # None is outside: "clip" is for speed, as numpy makes a copy by "raise".
            np.take(table, source.view(np.int64), out=hashed, mode="clip")
            target += hashed
        for side, modulus in ((left, self._a), (right, self._b)):
            np.floor_divide(side, modulus, out=hashed)
            hashed *= modulus
            side -= hashed

    def _compute(self, left: UInt64Array, right: UInt64Array, hashed: UInt64Array, spare: UInt64Array) -> None:
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                _hash(right, key, self._a, hashed, spare)
                _add(left, hashed, self._a, spare)
            else:
                _hash(left, key, self._b, hashed, spare)
                _add(right, hashed, self._b, spare)


def _add(x: UInt64Array, y: UInt64Array, modulus: np.uint64, spare: UInt64Array) -> None:
    """Make x + y mod modulus of x, both below it: the wrapped difference is huge where none is due."""
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
