"""How many batches are made ahead."""

AHEAD = 8  # tasks for each worker, by default: a slow sample then holds nobody up
_AHEAD_BYTES = 32 << 20  # of batches ahead, by default: more would not stay in the caches; at least two for each worker


def batches_ahead(size: int, workers: int, prefetch_factor: int | None) -> int:
    """Return how many batches of so many bytes are made ahead at most, by all workers together."""
    if prefetch_factor:
        return workers * prefetch_factor
    return max(2 * workers, min(AHEAD * workers, _AHEAD_BYTES // max(1, size)))
