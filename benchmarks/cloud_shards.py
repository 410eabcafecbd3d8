"""Read the slow bucket of `cloud.py` in shards of 1, 8 and 64 MB, with an empty cache and 2 workers.

`epoch_s` begins with the process, so it counts imports and the opening. The limit is the time that the bytes take at 60 MB/s. "s3fs" is
loaderkit where obstore is not installed. The peers read 8 MB, each from its own format.
"""

import os
import shutil
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from cloud import CLOUD_SHARDS, TOTAL, bucket_of, index, running, turn, write
from lib.cloud_turns import BYTES, LOADERS, S3FS
from lib.harness import Row, parse_options, record, tell
from report.declare import LOADER, ORDERS, Report, each

OURS = "lk.Loader"
SHARD_MB, PEERS_MB = (1, 8, 64), 8

REPORT = Report(minutes=19, group="From a bucket")
for name, bound in ((LOADER, 1.15), (f"{LOADER}, s3fs", 1.3)):
    REPORT.target(
        f"`{name}`: shards of 1, 8 and 64 MB, in order, then shuffled, from the process's start: over the network's limit",
        each("ratio_to_limit", contender=name, shard_mb=tuple(map(str, SHARD_MB)), order=ORDERS),
        most=bound,
    )
REPORT.target(
    f"`{LOADER}`: the first batch of each of these",
    each("first_batch_s", contender=LOADER, shard_mb=tuple(map(str, SHARD_MB)), order=ORDERS),
    most=1,
    unit=" s",
)
REPORT.chart(
    "Shards of 1, 8 and 64 MB from a slow bucket, empty cache, 2 workers: epoch over the network's limit (less is better)",
    "ratio_to_limit",
    panels=("order",),
    names=("contender", "shard_mb"),
    mark=1,
)


def main() -> None:
    options = parse_options(__doc__)
    samples = 1280 if options.quick else 18_560  # 2 GB: 31 s at the limit
    rows: list[Row] = []
    for shard_mb in SHARD_MB:
        names = [OURS, S3FS, *(list(LOADERS)[1:] if shard_mb == PEERS_MB else ())]
        shards = samples * BYTES // (shard_mb * 1_000_000)
        os.environ[CLOUD_SHARDS] = str(shards)
        with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "store") as store:
            names = [name for name in names if name == S3FS or write(name, store, shards, samples)]
            index(store)
            shutil.copytree(store.root / bucket_of(OURS), store.root / bucket_of(S3FS), copy_function=os.link)
            for order, name in product(ORDERS, names):
                tell(f"{shard_mb} MB, {order}, {name}")
                found = turn(name, store, order == "shuffled", 2, 0.0)
                if found is not None:
                    rows.append(row_of(shard_mb, order, name, found, samples))
    record("cloud_shards", rows, options)


def row_of(shard_mb: int, order: str, name: str, found: dict[str, Any], samples: int) -> Row:
    return {
        "shard_mb": shard_mb,
        "order": order,
        "contender": name,
        "epoch_s": found["whole"],
        "first_batch_s": found["first"],
        "ratio_to_limit": found["whole"] * TOTAL / (samples * BYTES),
        "bytes_over_minimum": found["bytes"] / samples / BYTES,
        "requests": found["requests"],
        "each_once": found["once"] and found["samples"] == samples,
    }


if __name__ == "__main__":
    main()
