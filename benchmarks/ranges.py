"""Download a shard from an object store: how fast, and how much of a CPU it takes, through s3fs, gcsfs or adlfs and through obstore.

The store is `tests/support/stand_ins/object_store.py`. Each turn is a process of its own, whose CPU time is counted without the store's. "ranges" are 16 parallel
ranges of 4 MiB that nobody keeps; "download", measured on S3, also computes the checksum and writes the copy. Google is left out without
gcsfs, and Azure without adlfs.
"""

import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from cloud import Store, running
from lib.harness import Row, parse_options, record, spread, tell, turns
from report.declare import Report

import loaderkit as lk

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
WAYS = {  # and the schemes of their URLs
    way: scheme
    for scheme, package in PACKAGES.items()
    if importlib.util.find_spec(package)
    for way in (package, f"obstore, {scheme}")
}
NETWORKS = {"fast": (0.001, 0.001, 1e10, 1e10), "200 MB/s": (0.03, 0.08, 50e6, 200e6)}  # latencies, a connection, all

REPORT = Report(minutes=8)
REPORT.chart(
    "A shard from an object store: CPU seconds a GB (less is better)", "cpu_s_per_gb", panels=("what", "network")
)


def main() -> None:
    if sys.argv[1:2] == ["turn"]:
        way, what, endpoint, size_text = sys.argv[2:]
        turn(way, what, endpoint, int(size_text))
        return
    options = parse_options(__doc__)
    size, rounds = (32 << 20, 1) if options.quick else (256 << 20, 3)
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "store") as store:
        (store.root / "bucket").mkdir()
        (store.root / "bucket" / "shard.bin").write_bytes(np.random.default_rng(1).bytes(size))
        (store.root / "account").mkdir()
        (store.root / "account" / "bucket").symlink_to(store.root / "bucket")
        for network, number in product(NETWORKS, range(rounds)):
            limit(store, network)
            for what, place in product(("ranges", "download"), turns(len(WAYS), number)):
                way = list(WAYS)[place]
                if what == "download" and WAYS[way] != "s3":
                    continue
                tell(f"{network}, round {number} of {rounds}: {what}, {way}")
                command = [sys.executable, __file__, "turn", way, what, store.url, str(size)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
                found.setdefault((network, what, way), []).append(json.loads(done.stdout))
    rows = [row_of(key, turns_of, size) for key, turns_of in found.items()]
    record("ranges", rows, options)


def limit(store: Store, network: str) -> None:
    low, high, connection, total = NETWORKS[network]
    store.ask(f"set?latency_s={low},{high}&connection={connection}&total={total}")


def turn(way: str, what: str, endpoint: str, size: int) -> None:
    """Download once, and print the seconds and the CPU seconds."""
    url = f"{WAYS[way]}://bucket/shard.bin"
    options: dict[str, dict[str, Any]] = {
        "s3": {"key": "test", "secret": "test", "endpoint_url": endpoint},
        "gs": {"token": "anon", "endpoint_url": endpoint},
        "az": {"connection_string": f"AccountName=account;BlobEndpoint={endpoint}/account"},
    }
    unknown: dict[str, dict[str, Any]] = {  # defaults of options that obstore is not given
        "s3": {"config_kwargs": {}},
        "gs": {"consistency": "none"},
        "az": {"version_aware": False},
    }
    given = options[WAYS[way]] | ({} if "obstore" in way else unknown[WAYS[way]])
    with tempfile.TemporaryDirectory() as folder:
        storage = lk.Storage(given, cache_dir=folder)
        storage.stat(url)  # imports fsspec's package, which also "download" through obstore asks for the version
        list(storage.read_many(url, [(0, 2 << 20)], size))  # opens the first connection
        begun, used = time.perf_counter(), cpu_s()
        if what == "ranges":
            got = sum(map(len, storage.read_many(url, [(0, size)], size)))
        else:
            with storage.open(url) as file:
                got = file.seek(0, 2)
        seconds = time.perf_counter() - begun
        if got != size:
            raise ValueError(f"got {got:,} bytes, wanted {size:,}")
        print(json.dumps({"seconds": seconds, "cpu_s": cpu_s() - used}))


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def row_of(key: tuple[str, str, str], found: list[dict[str, float]], size: int) -> Row:
    network, what, way = key
    rate = spread(size / 1e6 / one["seconds"] for one in found)
    cpu = spread(one["cpu_s"] / size * 1e9 for one in found)
    row: Row = {"network": network, "what": what, "contender": way, "mb_s": rate[1], "cpu_s_per_gb": cpu[1]}
    return row | {"cpu_q1": cpu[0], "cpu_q3": cpu[2], "repeats": len(found)}


if __name__ == "__main__":
    main()
