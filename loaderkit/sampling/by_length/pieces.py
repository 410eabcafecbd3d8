"""Samples that are cut into pieces of at most one length."""

import numpy as np

from loaderkit.system.arrays import Int64Array


def piece_ends(lengths: Int64Array, most: int) -> Int64Array:
    """Return for each sample how many pieces it and all samples before it have (N,).

    A piece has at most `most` tokens. An empty sample is one piece.
    """
    return np.cumsum(np.maximum(1, -(-lengths // most)), dtype=np.int64)


def piece_lengths(lengths: Int64Array, most: int) -> Int64Array:
    """Return the length of each piece (P,): `most` for all pieces of a sample except the last."""
    ends = piece_ends(lengths, most)
    sizes = np.full(int(ends[-1]) if len(ends) else 0, most, dtype=np.int64)
    sizes[ends - 1] = lengths - (np.diff(ends, prepend=0) - 1) * most
    return sizes
