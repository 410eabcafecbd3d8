"""Train from the slow bucket of `cloud.py` where only loaderkit takes part: a warm and a small cache, an empty node, 1,000 shards.

Each case runs in a process of its own, with an empty cache. `requests` and `bytes_over_minimum` are of the case alone.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cloud import Store, index, running, write
from lib.cloud_turns import BATCH, BYTES, KEY, Numbered, numbers_of
from lib.harness import Row, parse_options, record, spread, tell
from report.declare import Report, each

import loaderkit as lk

NAME, ROOM = "lk.Loader", 3.1  # shards
CASES = ("warm cache", "small cache, in order", "small cache, shuffled", "resume on an empty node", "open 1,000 shards")

REPORT = Report(minutes=4, group="From a bucket")
for text, column, case, bound, unit in (
    ("Requests that open 1,000 shards", "open_requests", CASES[4], 3, ""),
    ("Their time", "open_s", CASES[4], 1, " s"),
    (
        "A cache of 3 shards, in order and shuffled: peak over the limit",
        "peak_shards_over_limit",
        CASES[1:3],
        1,
        " shards",
    ),
    ("The same: bytes over the minimum", "bytes_over_minimum", CASES[1:3], 1.3, ""),
    ("First batch of a resume on an empty node", "first_batch_s", CASES[3], 2, " s"),
):
    REPORT.target(text, each(column, case=case), most=bound, unit=unit)
REPORT.chart("From a slow bucket: seconds (less is better)", "epoch_s", names=("case",), log=True)


def main() -> None:
    if sys.argv[1:2] == ["turn"]:
        print("\n" + json.dumps(turn(*sys.argv[2:])), flush=True)
        return
    options = parse_options(__doc__)
    shards, each, rounds = (4, 100, 1) if options.quick else (10, 640, 3)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "store") as store:
        write(NAME, store, shards, shards * each)
        index(store)
        lk.write_shards(Numbered(2000), store.root / "many" / "train", samples_per_shard=2)
        found: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
        for number in range(rounds):
            for case in CASES:
                tell(f"round {number} of {rounds}: {case}")
                found[case].append(run(case, store, shards * each, each))
    rows: list[Row] = [
        {"case": case, **{name: spread(one[name] for one in turns)[1] for name in turns[0]}, "repeats": len(turns)}
        for case, turns in found.items()
    ]
    record("cloud_cases", rows, options)


def run(case: str, store: Store, samples: int, each: int) -> dict[str, float]:
    cache = tempfile.mkdtemp()
    command = [sys.executable, __file__, "turn", case, store.url, cache, str(samples), str(each)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def turn(case: str, url: str, cache: str, samples: str, each: str) -> dict[str, float]:
    """Run a case; `samples` and `each` are those of the data and of a shard."""
    store, shard_bytes = Store(Path(), int(url.rpartition(":")[2])), int(each) * (BYTES + 2048)
    room = int(ROOM * shard_bytes) if case.startswith("small") else 1 << 36
    storage = lk.Storage(KEY | {"endpoint_url": url}, cache_dir=cache, cache_bytes=room)
    bucket = "many" if case.startswith("open") else NAME.lower().replace(".", "-")

    def make() -> lk.Loader:
        data = lk.TarDataset(f"s3://{bucket}/train/*.tar", storage=storage, index_dir=Path(cache) / "index")
        return lk.Loader(data, BATCH, shuffle="in order" not in case, num_workers=2, collate_fn=numbers_of)

    if case.startswith("warm"):
        list(make())
    store.ask("reset")
    peak, over = [0], threading.Event()
    threading.Thread(target=_watch, args=(Path(cache), peak, over), daemon=True).start()
    begun = time.perf_counter()
    loader = make()
    opened_s, opened = time.perf_counter() - begun, len(store.ask("stats"))
    first_s, read = 0.0, 0
    if case.startswith("resume"):
        loader.seek(epoch=0, samples=int(samples) // 2 // BATCH * BATCH)
    if not case.startswith("open"):
        for numbers in loader:
            first_s, read = first_s or time.perf_counter() - begun, read + len(numbers)
            if case.startswith("resume"):
                break
    epoch_s = time.perf_counter() - begun
    over.set()
    loader.close()
    asked = [one for one in store.ask("stats") if one["path"].endswith(".tar")]
    return {
        "open_s": opened_s,
        "open_requests": opened,
        "first_batch_s": first_s,
        "epoch_s": epoch_s,
        "bytes_over_minimum": sum(one["bytes"] for one in asked) / max(1, read * BYTES),
        "peak_shards_over_limit": max(0.0, peak[0] - room) / shard_bytes,
    }


def _watch(folder: Path, peak: list[int], over: threading.Event) -> None:
    while not over.wait(0.02):
        try:
            used = sum(path.stat().st_blocks * 512 for path in folder.glob("*.lk*"))
        except FileNotFoundError:
            continue
        peak[0] = max(peak[0], used)


if __name__ == "__main__":
    main()
