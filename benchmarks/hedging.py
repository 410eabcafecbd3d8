"""Read from an object store that answers a few requests late: ours, which makes a late request twice, and each request once.

The store is `tests/support/stand_ins/object_store.py`: 30 to 80 ms to the first byte, 50 MB/s a connection, 200 MB/s in all, and a share of the requests waits
2 s longer. "shards" are downloads of 64 MB, in ranges of 4 MiB; "samples" are batches of 64 ranges of 100 KB at random places. Both
contenders make up to 16 requests at a time, one shard or batch after another. The limit is the time that the bytes take at 200 MB/s.
"""

import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from cloud import Store, running
from lib.harness import Row, parse_options, record, seconds, spread, tell, turns
from report.declare import Report

import loaderkit as lk

SHARD, SAMPLE, BATCH, RANGE = 64_000_000, 100_000, 64, 1 << 22  # bytes, bytes, ranges, bytes
LATENCY_S, CONNECTION, TOTAL, LONGER_S, AT_ONCE = "0.03,0.08", 50e6, 200e6, 2.0, 16
SHARES = (0.0, 0.002, 0.01)
URL = "s3://bucket/shard.bin"
Ranges = list[tuple[int, int]]

REPORT = Report(minutes=4)
REPORT.chart(
    "A share of the requests waits 2 s longer: time over the network's limit (less is better)",
    "ratio_to_limit",
    panels=("what", "late_share"),
)


def main() -> None:
    options = parse_options(__doc__)
    repeats, rounds = (2, 1) if options.quick else (8, 5)
    found: dict[tuple[str, float, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "store") as store:
        (store.root / "bucket").mkdir()
        (store.root / "bucket" / "shard.bin").write_bytes(np.random.default_rng(1).bytes(SHARD))
        storage = lk.Storage({"key": "test", "secret": "test", "endpoint_url": store.url}, cache_dir=None)
        contenders = {
            "each request once": partial(read_once, storage),
            "Storage.read_many": partial(read_hedged, storage),
        }
        for number, what, share in product(range(-1, rounds), ("shards", "samples"), SHARES):
            store.ask(f"set?latency_s={LATENCY_S}&connection={CONNECTION}&total={TOTAL}&slow={share},{LONGER_S}")
            asked = ranges_of(what, repeats, number + 1)
            for place in turns(len(contenders), max(number, 0)):
                name = list(contenders)[place]
                tell(f"round {number} of {rounds}: {what}, {share:.1%} are late, {name}")
                taken = turn(contenders[name], asked, store)
                if number >= 0:  # the first opens connections
                    found.setdefault((what, share, name), []).append(taken)
    rows = [row_of(*key, taken) for key, taken in found.items()]
    record("hedging", rows, options)


def ranges_of(what: str, repeats: int, seed: int) -> list[Ranges]:
    """Return the ranges of each shard, or of each batch."""
    if what == "shards":
        return [[(at, min(at + RANGE, SHARD)) for at in range(0, SHARD, RANGE)]] * repeats
    random = np.random.default_rng(seed)
    starts = random.integers(0, SHARD - SAMPLE, (2 * repeats, BATCH)).tolist()
    return [[(at, at + SAMPLE) for at in batch] for batch in starts]


def read_once(storage: lk.Storage, ranges: Ranges) -> Iterable[bytes]:
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield from pool.map(lambda part: storage.read(URL, part[0], part[1], SHARD), ranges)
    finally:
        pool.shutdown()


def read_hedged(storage: lk.Storage, ranges: Ranges) -> Iterable[bytes]:
    return storage.read_many(URL, ranges, SHARD)


def turn(read: Callable[[Ranges], Iterable[bytes]], asked: list[Ranges], store: Store) -> tuple[float, float]:
    """Return the seconds over the limit's, and the bytes that the store sent over those wanted."""
    wanted = sum(stop - start for ranges in asked for start, stop in ranges)
    store.ask("reset")

    def run() -> None:
        got = sum(len(part) for ranges in asked for part in read(ranges))
        if got != wanted:
            raise ValueError(f"got {got:,} bytes, wanted {wanted:,}")

    taken = seconds(run)
    sent = sum(request["bytes"] for request in store.ask("stats"))
    return taken / (wanted / TOTAL), sent / wanted


def row_of(what: str, share: float, name: str, taken: list[tuple[float, float]]) -> Row:
    ratio = spread(time for time, _ in taken)
    row: Row = {"what": what, "late_share": share, "contender": name, "ratio_to_limit": ratio[1]}
    row |= {"ratio_to_limit_q1": ratio[0], "ratio_to_limit_q3": ratio[2]}
    return row | {"bytes_over_minimum": spread(sent for _, sent in taken)[1], "repeats": len(taken)}


if __name__ == "__main__":
    main()
