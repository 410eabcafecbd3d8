"""Samples that are cut into pieces of at most one length."""

import numpy as np

from loaderkit.system.arrays import Int64Array


def piece_ends(lengths: Int64Array, most: int) -> Int64Array:
    """Return how many pieces of at most `most` tokens the samples up to each one have (N,). An empty sample is one piece."""
    return np.cumsum(np.maximum(1, -(-lengths // most)), dtype=np.int64)


def piece_lengths(lengths: Int64Array, most: int) -> Int64Array:
    """Return the length of each piece (P,): all of a sample's pieces are full, but its last."""
    ends = piece_ends(lengths, most)
    sizes = np.full(int(ends[-1]) if len(ends) else 0, most, dtype=np.int64)
    sizes[ends - 1] = lengths - (np.diff(ends, prepend=0) - 1) * most
    return sizes
