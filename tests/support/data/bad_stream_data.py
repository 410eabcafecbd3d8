"""Streams with bad samples, for several tests."""

from collections import Counter
from collections.abc import Iterator

import loaderkit as lk
from loaderkit.system.retry import Retry

SIZES = [9, 0, 14, 3, 1, 8]

NAMES = [f"{number}:{size}" for number, size in enumerate(SIZES)]

ALL = [number * 1000 + row for number, size in enumerate(SIZES) for row in range(size)]

FAST = Retry(attempts=3, wait_s=0)

SKIP = lk.BadSamples("skip", max_rate=1, retry=FAST)

BAD = {
    "one": {2004},
    "first and last of shards": {0, 8, 2000, 2013, 5007},
    "a run over windows": set(range(2002, 2012)),
    "every second": set(ALL[::2]),
    "whole shards": {*range(3000, 3003), 4000},
    "most": set(ALL) - {3, 2001, 2012, 5000},
}


class Read:
    """Reads shards "number:size" whose samples are number * 1000 + row; a bad one ends the iterator."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad

    def __call__(self, shard: str, start: int = 0) -> Iterator[int]:
        number, size = map(int, shard.split(":"))
        for value in range(number * 1000 + start, number * 1000 + size):
            if value in self.bad:
                raise ValueError(f"cannot decode {value}")
            yield value


def found_by(loader: lk.Loader) -> Counter[int]:
    """The ids of what a loader has left out."""
    return Counter(1000 * int(str(bad.shard).split("/")[-1].split(":")[0]) + bad.index for bad in loader.bad_samples)
