"""Read the slow bucket of `cloud.py` in shards of 1, 8 and 64 MB with an empty cache, through obstore and through s3fs alone.

Samples of 100 KB in batches of 32, 2 workers. Each turn is a process of its own, and its start counts. The limit is the time that the
bytes take at 60 MB/s. `requests` are those for shards.
"""

import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from cloud import TOTAL, Store, running
from report.declare import ORDERS

from lib.cloud_turns import BYTES, KEY, Numbered, numbers_of
from lib.harness import Row, spread, tell
from loaderkit.datasets.shards.folder_index import read_folder_index, write_folder_index
from loaderkit.files.urls import shard_name

BATCH = 32
SHARD_MB = (1, 8, 64)
CLIENTS = ("obstore", "s3fs")
BUCKET = "shards"


def main() -> None:
    if sys.argv[1:2] == ["turn"]:
        print("\n" + json.dumps(turn(*sys.argv[2:])), flush=True)
        return
    samples, rounds = (3840, 1) if "--quick" in sys.argv else (18_560, 1)
    rows: list[Row] = []
    for shard_mb in SHARD_MB:
        with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "store") as store:
            write(store, shard_mb, samples)
            found: dict[tuple[str, str], list[dict[str, float]]] = {}
            for number, order, client in product(range(rounds), ORDERS, CLIENTS):
                tell(f"round {number} of {rounds}: {shard_mb} MB, {order}, {client}")
                found.setdefault((order, client), []).append(run(store, order, client, samples))
            rows += [row_of(shard_mb, *key, turns, samples) for key, turns in found.items()]
    for row in rows:
        print(row)


def write(store: Store, shard_mb: int, samples: int) -> None:
    import loaderkit as lk

    folder = store.root / BUCKET / "train"
    lk.write_shards(Numbered(samples), folder, samples_per_shard=shard_mb * 1_000_000 // BYTES)
    # As `loaderkit index s3://... --folder-index` does, without a download: the index with the store's times and entity tags.
    lk.index_shards(folder, folder_index=True)
    storage = lk.Storage(KEY | {"endpoint_url": store.url}, cache_dir=None)
    found = {shard_name(url): version for url, version in storage.find(f"s3://{BUCKET}/train/", [".tar"]).items()}
    indexes = read_folder_index(str(folder), storage)
    tagged = {
        name: dataclasses.replace(index.loaded(), etag=version.etag, changed_ns=version.changed_ns)
        for name, index in indexes.items()
        if (version := found[name]) is not None
    }
    write_folder_index(str(folder), tagged)


def run(store: Store, order: str, client: str, samples: int) -> dict[str, float]:
    store.ask("reset")
    cache = tempfile.mkdtemp()
    command = [sys.executable, __file__, "turn", order, client, store.url, cache]
    begun = time.time()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if found["numbers"] != list(range(samples)):
        raise RuntimeError(f"{order} by {client}: {len(found['numbers'])} samples came, wanted each of {samples} once.")
    asked = [one for one in store.ask("stats") if one["path"].endswith(".tar")]
    return {
        "epoch_s": found["ended"] - begun,
        "opened_s": found["opened"] - found["imported"],
        "first_batch_s": found["first"] - found["imported"],
        "bytes_over_minimum": sum(one["bytes"] for one in asked) / samples / BYTES,
        "requests": len(asked),
    }


def turn(order: str, client: str, url: str, cache: str) -> dict[str, Any]:
    """Read an epoch; return when what happened, and the samples' numbers in ascending order."""
    import loaderkit as lk
    from loaderkit.files.obstore_settings import STORES

    imported = time.time()
    if client != "obstore":
        STORES.clear()
    storage = lk.Storage(KEY | {"endpoint_url": url}, cache_dir=cache)
    data = lk.TarDataset(f"s3://{BUCKET}/train/*.tar", storage=storage, index_dir=Path(cache) / "index")
    opened, first, numbers = time.time(), 0.0, []
    loader = lk.Loader(data, BATCH, shuffle=order == "shuffled", num_workers=2, collate_fn=numbers_of)
    for batch in loader:
        first = first or time.time()
        numbers += batch.tolist()
    ended = time.time()
    loader.close()
    return {"imported": imported, "opened": opened, "first": first, "ended": ended, "numbers": sorted(numbers)}


def row_of(shard_mb: int, order: str, client: str, found: list[dict[str, float]], samples: int) -> Row:
    medians = {name: spread(one[name] for one in found)[1] for name in found[0]}
    ratio = medians["epoch_s"] * TOTAL / (samples * BYTES)
    return {
        "shard_mb": shard_mb,
        "order": order,
        "client": client,
        "ratio_to_limit": ratio,
        **medians,
        "repeats": len(found),
    }


if __name__ == "__main__":
    main()
