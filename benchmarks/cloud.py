"""Read shards from a slow object store with an empty cache: ours and three peers, each from its own format.

The store is `tests/support/stand_ins/object_store.py`: 30 to 80 ms to the first byte, 15 MB/s a connection, 60 MB/s in all. Ten shards of 64 MB, samples of 100 KB,
batches of 16. Each turn is a process of its own with an empty cache. The limit is the time that the bytes take at 60 MB/s, or the
steps, whichever is more. `DataLoader` has no loader of buckets.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from lib.cloud_turns import BATCH, BYTES, LOADERS
from lib.harness import Row, parse_options, record, spread, tell, turns
from report.declare import LOADER, ORDERS, Report, cell, each, listed, over

HERE = Path(__file__).parent
STORE = HERE.parent / "tests" / "support" / "stand_ins" / "object_store.py"
CONNECTION, TOTAL = 15e6, 60e6  # bytes a second
LATENCY_S = ("0.03", "0.08")
TURN_S = 120.0  # a loader that takes longer is left out
CLOUD_SHARDS = "CLOUD_SHARDS"

REPORT = Report(minutes=12, group="From a bucket")
REPORT.target(
    "First epoch from a slow bucket, 2 workers, in order and shuffled: over the network's limit",
    each("ratio_to_limit", order=ORDERS, workers="2", step_ms="0", contender=LOADER),
    most=1.2,
)
for text, bound, unit in (("Its first batch, shuffled", 1.5, " s"), ("The same over webdataset's", 1, "")):
    ours, theirs = (
        each("first_batch_s", order="shuffled", workers="2", step_ms="0", contender=name)
        for name in (LOADER, "webdataset")
    )
    REPORT.target(text, ours if unit else over(ours, theirs), most=bound, unit=unit)
for order in ORDERS:
    setting = {"order": order, "workers": "2", "step_ms": "0"}
    REPORT.line(
        cell(
            f"Ten shards of 64 MB from a slow bucket with an empty cache, {order}, 2 workers: epoch over the network's limit "
            "(first batch; {:.0f} rounds)",
            each("repeats", contender=LOADER, **setting),
        ),
        cell("{} x ({} s)", each("ratio_to_limit", "first_batch_s", contender=LOADER, **setting)),
        listed("{contender} {ratio_to_limit} x ({first_batch_s} s)", without=LOADER, **setting),
    )
REPORT.chart(
    "From a slow bucket with an empty cache, 2 workers (less is better)",
    {"ratio_to_limit": "epoch over the network's limit", "first_batch_s": "seconds to the first batch"},
    panels=("order",),
    where={"workers": "2", "step_ms": "0"},
)


def main() -> None:
    options = parse_options(__doc__)
    shards, each, rounds = (4, 20, 1) if options.quick else (10, 640, 3)
    cases = [(False, 2, 0.0), (True, 2, 0.0)]
    once = [] if options.quick else [*product((False, True), (2,), (0.05,)), (False, 4, 0.0), (True, 4, 0.0)]
    os.environ[CLOUD_SHARDS] = str(shards)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "store") as store:
        names = [name for name in LOADERS if write(name, store, shards, shards * each)]
        index(store)
        found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for number in range(rounds):
            for case in cases if number else cases + once:
                for place in turns(len(names), number):
                    name = names[place]
                    tell(f"round {number} of {rounds}: {case}, {name}")
                    one = turn(name, store, *case)
                    if one is not None:
                        found.setdefault((*case, name), []).append(one)
    rows = [row_of(key, turns_of, shards * each) for key, turns_of in found.items()]
    record("cloud", rows, options)


class Store:
    """A running store over a folder of buckets."""

    def __init__(self, root: Path, port: int) -> None:
        self.root, self.url = root, f"http://127.0.0.1:{port}"

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/__{path}", timeout=30) as answer:
            return json.load(answer)


@contextlib.contextmanager
def running(root: Path) -> Iterator[Store]:
    root.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    limits = ["--latency", *LATENCY_S, "--connection", str(CONNECTION), "--total", str(TOTAL)]
    process = subprocess.Popen([sys.executable, str(STORE), str(port), str(root), *limits])
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield Store(root, port)
    finally:
        process.kill()
        process.wait(10)


def bucket_of(name: str) -> str:
    return name.lower().replace(",", "").replace(".", "-").replace(" ", "-")


def write(name: str, store: Store, shards: int, samples: int) -> bool:
    """Write a loader's format into its bucket. Return whether that worked."""
    folder = store.root / bucket_of(name) / "train"
    command = [
        python_of(name),
        str(HERE / "lib" / "cloud_turns.py"),
        "write",
        name,
        str(folder),
        str(shards),
        str(samples),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        tell(f"{name}: left out: {done.stderr.strip().splitlines()[-1:]}")
    return done.returncode == 0


def index(store: Store) -> None:
    """Add the store's entity tags to the index of our bucket, as one does once after an upload."""
    url = f"s3://{bucket_of('lk.Loader')}/train"
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--storage-option={key}" for key in ("key=test", "secret=test", f"endpoint_url={store.url}")]
        command = [sys.executable, "-m", "loaderkit.cli", "index", f"{url}/*.tar", "--folder-index", "--quiet"]
        command += [f"--index-dir={folder}/index", f"--cache-dir={folder}/cache", *options]
        subprocess.run(command, check=True, cwd=HERE.parent, stdout=subprocess.DEVNULL)


def turn(name: str, store: Store, shuffle: bool, workers: int, step_s: float) -> dict[str, Any] | None:
    """Read an epoch in a process of its own; None if the loader failed or took too long."""
    store.ask("reset")
    cache = Path(tempfile.mkdtemp())
    given = [f"s3://{bucket_of(name)}/train", store.url, str(shuffle), str(workers), str(step_s)]
    command = [python_of(name), str(HERE / "lib" / "cloud_turns.py"), "read", name, str(cache), *given]
    begun = time.time()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TURN_S, check=True, env=_environment())
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        tell(f"{name}, shuffle {shuffle}, {workers} workers: left out: took longer than {TURN_S:g} s.")
        return None
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        said = getattr(error, "stderr", "").strip().splitlines()[-1:]
        tell(f"{name}, shuffle {shuffle}, {workers} workers: left out: {said}")
        return None
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    asked = store.ask("stats")
    more = {"bytes": sum(request["bytes"] for request in asked), "requests": len(asked)}
    return found | more | {"whole": found["ended"] - begun}


def _environment() -> dict[str, str]:
    """Return the environment of a turn. Where it forbids it, Python may keep compiled modules, as it does for users."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def python_of(name: str) -> str:
    """Return the interpreter of a peer that needs an environment of its own."""
    own = HERE.parent / "envs" / name.split()[0].lower() / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def row_of(key: tuple[Any, ...], found: list[dict[str, Any]], samples: int) -> Row:
    shuffle, workers, step_s, name = key
    limit = max(samples * BYTES / TOTAL, samples / BATCH * step_s)
    first, epoch = (spread(one[column] for one in found) for column in ("first", "epoch"))
    return {
        "order": "shuffled" if shuffle else "in order",
        "workers": workers,
        "step_ms": step_s * 1e3,
        "contender": name,
        "first_batch_s": first[1],
        "epoch_s": epoch[1],
        "epoch_s_q1": epoch[0],
        "epoch_s_q3": epoch[2],
        "ratio_to_limit": epoch[1] / limit,
        "bytes_over_minimum": spread(one["bytes"] / samples / BYTES for one in found)[1],
        "requests": int(spread(one["requests"] for one in found)[1]),
        "each_once": all(one["once"] and one["samples"] == samples for one in found),
        "repeats": len(found),
    }


if __name__ == "__main__":
    main()
