"""What `loaderkit doctor` measures of an object store: how long a request takes, and how fast bytes come."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from loaderkit.datasets.shards.files import ShardFiles
from loaderkit.files.requests import BLOCK, REQUESTS

_REQUESTS = 5  # their median is the latency
_CLEAR = 1.5  # a block tells the speed of a connection if it takes longer than this many latencies
_SAMPLE_BYTES = 64 << 20  # downloaded to measure all connections together


@dataclass(frozen=True, slots=True)
class StoreSpeed:
    """How fast a store answers.

    Args:
        latency_s: Seconds until the answer to a request of one byte.
        connection: Bytes a second of one connection; None if a block takes hardly longer than a byte.
        together: Bytes a second of a download by parallel ranges.
        block: Bytes of each request of such a download.
    """

    latency_s: float
    connection: float | None
    together: float
    block: int

    @property
    def connections(self) -> int:
        """How many connections reach the rate of a download, if each waits for the latency before a block."""
        if self.connection is None:
            return REQUESTS
        alone = self.block / (self.latency_s + self.block / self.connection)
        return max(1, math.ceil(self.together / alone))

    def advice(self) -> str:
        """Say how many connections the run wants."""
        if self.connections < REQUESTS - 1:
            return f"{self.connections} connections would reach that, and a download opens {REQUESTS}"
        return f"all {REQUESTS} connections of a download are busy: two workers, which download at the same time, may get more"


def measure_store(files: ShardFiles) -> StoreSpeed | None:
    """Measure the store of a dataset's largest remote shard, by reading up to 64 MiB of it; None if all shards are local."""
    if not files.remote_bytes:
        return None
    url, size = max(((url, found.size_bytes) for url, found in files.remote.items()), key=lambda item: item[1])
    storage = files.storage
    storage.read(url, 0, 1, size)  # opens the connection
    latency = median(_seconds(lambda: storage.read(url, 0, 1, size)) for _ in range(_REQUESTS))
    block = min(size, BLOCK)
    alone = _seconds(lambda: storage.read(url, 0, block, size))
    some = min(size, _SAMPLE_BYTES)
    together = _seconds(lambda: sum(map(len, storage.read_many(url, [(0, some)], size))))
    # If a block takes hardly longer than a byte, the difference is noise.
    connection = block / (alone - latency) if alone > _CLEAR * latency else None
    return StoreSpeed(latency, connection, some / max(1e-6, together), block)


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
