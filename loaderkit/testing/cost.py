"""Check that a first batch costs the same for any number of samples."""

import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence

from loaderkit.testing.compare import LawError
from loaderkit.testing.consume import failing_as, process


def assert_cost_independent_of_size(
    make_loader_of_size: Callable[[int], Iterable[object]],
    *,
    sizes: Sequence[int] = (1_000, 2_000_000),
    extra_s: float = 0.1,
    extra_bytes: int = 16 << 20,
    repeats: int = 3,
) -> None:
    """Check that the time and memory to make a loader and draw its first batch do not grow with the data.

    Args:
        make_loader_of_size: Returns a loader for a number of samples. Making the dataset counts, so
            use a cheap one, such as a `range`.
        sizes: Numbers of samples. The first is the reference for the others.
        extra_s: Most seconds that a larger size may take in addition; the best of `repeats` counts.
        extra_bytes: Most memory that a larger size may take in addition. Counted by tracemalloc:
            Python's and numpy's memory, not that of torch's tensors.
        repeats: Number of time measurements.

    Raises:
        LawError: If time or memory grow.

    Examples:
        >>> def make_loader_of_size(size):
        ...     return lk.Loader(range(size), 32, shuffle=True)
        >>> lk.testing.assert_cost_independent_of_size(make_loader_of_size, sizes=(1_000, 10**12))
    """
    least_bytes, least_s = 0, 0.0
    for number, size in enumerate(sizes):
        what = f"the first batch of {size:,} samples"
        with process(seed=0), failing_as(what):
            memory = _peak_bytes(make_loader_of_size, size)
            seconds = min(_seconds(make_loader_of_size, size) for _ in range(repeats))
        if number == 0:
            least_bytes, least_s = memory, seconds
        if memory > least_bytes + extra_bytes:
            raise LawError(
                f"{what} takes {memory:,} bytes of memory, of {sizes[0]:,} samples {least_bytes:,}: "
                f"it grows with the data, wanted at most {extra_bytes:,} bytes more."
            )
        if seconds > least_s + extra_s:
            raise LawError(
                f"{what} takes {seconds:.3f} s, of {sizes[0]:,} samples {least_s:.3f} s: "
                f"it grows with the data, wanted at most {extra_s} s more."
            )


def _seconds(make_loader_of_size: Callable[[int], Iterable[object]], size: int) -> float:
    start = time.perf_counter()
    _draw_one(make_loader_of_size(size))
    return time.perf_counter() - start


def _peak_bytes(make_loader_of_size: Callable[[int], Iterable[object]], size: int) -> int:
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        _draw_one(make_loader_of_size(size))
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()


def _draw_one(loader: Iterable[object]) -> None:
    for _ in loader:
        return
    raise LawError("the loader has no batches: nothing to measure.")
