"""Download a shard from an object store: how fast, and how much of a CPU it takes, through s3fs and through obstore.

The store is `object_store.py`. Each turn is a process of its own, whose CPU time is counted without the store's. "ranges" are 16 parallel
ranges of 4 MiB that nobody keeps; "download" also computes the checksum and writes the copy.
"""

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
from harness import DATA, OURS, Row, parse_options, report, spread, tell, turns

import loaderkit as lk

WAYS = ("s3fs", "obstore")
NETWORKS = {"fast": (0.001, 0.001, 1e10, 1e10), "200 MB/s": (0.03, 0.08, 50e6, 200e6)}  # latencies, a connection, all
URL = "s3://bucket/shard.bin"


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
        for network, number in product(NETWORKS, range(rounds)):
            limit(store, network)
            for what, place in product(("ranges", "download"), turns(len(WAYS), number)):
                tell(f"{network}, round {number} of {rounds}: {what}, {WAYS[place]}")
                command = [sys.executable, __file__, "turn", WAYS[place], what, store.url, str(size)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
                found.setdefault((network, what, WAYS[place]), []).append(json.loads(done.stdout))
    rows = [row_of(key, turns_of, size) for key, turns_of in found.items()]
    report("ranges", rows, options, lambda figure: draw(figure, rows))


def limit(store: Store, network: str) -> None:
    low, high, connection, total = NETWORKS[network]
    store.ask(f"set?latency_s={low},{high}&connection={connection}&total={total}")


def turn(way: str, what: str, endpoint: str, size: int) -> None:
    """Download once, and print the seconds and the CPU seconds."""
    options: dict[str, Any] = {"key": "test", "secret": "test", "endpoint_url": endpoint}
    if way == "s3fs":
        options["config_kwargs"] = {}  # an option that obstore is not given
    with tempfile.TemporaryDirectory() as folder:
        storage = lk.Storage(options, cache_dir=folder)
        storage.stat(URL)  # imports s3fs, which also "download" through obstore asks for the version
        list(storage.read_many(URL, [(0, 2 << 20)], size))  # opens the first connection
        begun, used = time.perf_counter(), cpu_s()
        if what == "ranges":
            got = sum(map(len, storage.read_many(URL, [(0, size)], size)))
        else:
            with storage.open(URL) as file:
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


def draw(figure: Any, rows: list[Row]) -> None:
    axes = figure.subplots()
    groups = list(dict.fromkeys((row["network"], row["what"]) for row in rows))
    for number, way in enumerate(WAYS):
        mine = [row for row in rows if row["contender"] == way]
        places = [groups.index((row["network"], row["what"])) + 0.4 * number - 0.2 for row in mine]
        axes.bar(places, [row["cpu_s_per_gb"] for row in mine], 0.36, label=way, color=(DATA, OURS)[number])
    axes.set_xticks(range(len(groups)), [f"{what}\n{network}" for network, what in groups])
    axes.set_ylabel("CPU seconds a GB")
    axes.legend(frameon=False)


if __name__ == "__main__":
    main()
