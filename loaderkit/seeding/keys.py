"""Seeds from keys: the same numbers on every machine and in every version."""

import functools
import hashlib

import numpy as np

from loaderkit.system.arrays import Int64Array, UInt64Array

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the step of SplitMix64


@functools.lru_cache(maxsize=256, typed=True)
def derive_seed(*keys: int | str) -> int:
    """Hash keys to a seed in [0, 2**63).

    The seed is the same on every machine and in every version.

    Args:
        keys: Integers and strings. Their order and type count: 1 and "1" give different seeds. numpy integers count as
            Python integers.

    Returns:
        The first 63 bits of a BLAKE2b hash.

    Examples:
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
    words = positions.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(derive_seed(*keys))
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def mixed_word(word: int) -> int:
    """Return another seed for the same sample; its draws are independent of the first seed's."""
    return int(hash_positions(np.array([word], dtype=np.uint64).view(np.int64), "again")[0])
