"""Seeds from keys: the same numbers on every machine and in every version."""

import functools
import hashlib

import numpy as np

from loaderkit.system.arrays import Int64Array, UInt64Array

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the step of SplitMix64
_GAMMA, _LAST_SHIFT = np.uint64(GOLDEN), np.uint64(31)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_MIX_ONE = tuple((int(shift), int(factor)) for shift, factor in _MIX)
_WORD = 2**64 - 1
_FEW = 8  # up to this many words, Python integers are faster than arrays
_BLOCK = 1 << 14  # words mixed at a time, so that the temporaries stay in a core's cache


@functools.lru_cache(maxsize=256, typed=True)
def derive_seed(*keys: int | str) -> int:
    """Hash keys to a seed in [0, 2**63), the same on every machine and in every version.

    Args:
        keys: Integers and strings. Their order and type count: 1 and "1" give different seeds. numpy integers count as
            Python integers.

    Returns:
        The first 63 bits of a BLAKE2b hash.

    Example:
        >>> lk.derive_seed(0, "split")
        3563509868661246128
        >>> lk.derive_seed(1, "a") == lk.derive_seed("a", 1)
        False
    """
    text = "\x1f".join(f"{'i' if isinstance(key, np.integer) else type(key).__name__[0]}{key}" for key in keys)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def hash_positions(positions: Int64Array, *keys: int | str) -> UInt64Array:
    """Return one random 64-bit word (N,) for each position (N,), a function of the position and the keys.

    The words are the SplitMix64 sequence that starts at the keys' seed (Steele et al., OOPSLA 2014).
    """
    seed = derive_seed(*keys)
    if len(positions) <= _FEW:
        return np.array([_mix64_one(position, seed) for position in positions.tolist()], dtype=np.uint64)
    words = positions.astype(np.uint64)
    start = np.uint64(seed)
    for begin in range(0, len(words), _BLOCK):
        _mix64(words[begin : begin + _BLOCK], start)
    return words


def mixed_word(word: int) -> int:
    """Return another seed for the same sample; its draws are independent of the first seed's."""
    return int(hash_positions(np.array([word], dtype=np.uint64).view(np.int64), "again")[0])


def _mix64(words: UInt64Array, start: np.uint64) -> None:
    """Mix the bits of each word in place; different words stay different."""
    shifted = np.empty_like(words)
    words *= _GAMMA
    words += start
    for shift, factor in _MIX:
        np.right_shift(words, shift, out=shifted)
        words ^= shifted
        words *= factor
    np.right_shift(words, _LAST_SHIFT, out=shifted)
    words ^= shifted


def _mix64_one(word: int, start: int) -> int:
    """Do what `_mix64` does, for one word."""
    word = (word * GOLDEN + start) & _WORD
    for shift, factor in _MIX_ONE:
        word = (word ^ word >> shift) * factor & _WORD
    return word ^ word >> 31
