"""Samples a second from the same data on local disk, in the page cache: loaderkit, the peers and the bare loop.

Tokens: 200,000 sequences of 16 to 512 uint16 tokens in ten shards. Pictures: 5,000 JPEGs of 96 x 96 with a class, in
ten shards. Batches of 64, in order and shuffled, 0 and 2 workers. All decode with the same function, and
collate alike: tokens end to end with offsets, pictures stacked. A contender's run is a fresh process. The clock
goes from an epoch's first batch to its end, or for a few seconds where an epoch takes longer: once in the process's first
epoch (`first_epoch`), and once in another epoch of the same loader (`later_epoch`). What comes before the first batch, making
dataset and loader included, is `first_batch_ms`. Contenders take turns in an order drawn again each round, and speeds
are compared within a round.

The bare loop reads, decodes and collates sample by sample, without a loader, in one thread. Without workers, loaderkit
decodes pictures in as many threads as torch has, so that its ratio may exceed 1; "one thread" is the same loader after
`torch.set_num_threads(1)`.
"""

import argparse
import csv
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from driver import Peer, add_options, interpreters, started
from sources import load_size, write_sources

sys.path.insert(0, str(Path(__file__).parent.parent))
from harness import DATA, LIMIT, OURS, RESULTS, TORCH, Row, machine

BARE = "bare loop"
ONE_THREAD = "loaderkit, tar, one thread"
CONTENDERS = {
    "torch": {"tokens": "memory-map + DataLoader", "pictures": "file + DataLoader"},
    "loaderkit": {"tokens": "loaderkit, documents", "parquet": "loaderkit, Parquet", "pictures": "loaderkit, tar"},
    "litdata": {"tokens": "litdata", "pictures": "litdata"},
    "mosaicml": {"tokens": "mosaicml-streaming", "pictures": "mosaicml-streaming"},
    "webdataset": {"tokens": "webdataset", "pictures": "webdataset"},
    "hf": {"tokens": "Hugging Face datasets", "pictures": "Hugging Face datasets"},
    "energon": {"tokens": "Megatron-Energon"},
}
WORKLOADS = {"tokens": ("tokens", "parquet"), "pictures": ("pictures",)}
BATCH = 64
Answer = dict[str, Any]  # of one job


def prepare(peers: dict[str, Peer], folder: str) -> dict[tuple[str, str], str]:
    """Let each peer write its data; return the contenders' names by peer and kind."""
    found = {}
    for key, peer in peers.items():
        for kind, name in CONTENDERS[key].items():
            begun = time.perf_counter()
            answer = peer.call("write_data", folder=folder, kind=kind, limit_s=600)[0]
            if "error" in answer:
                print(f"{name}: left out: its data can't be written: {answer}", file=sys.stderr)
                continue
            print(f"{name}: {kind} written in {time.perf_counter() - begun:.1f} s", file=sys.stderr)
            found[key, kind] = name
    return found


def speeds(
    peers: dict[str, Peer],
    names: dict[tuple[str, str], str],
    folder: str,
    rounds: int,
    seconds: float,
    deadline: float,
) -> list[Row]:
    """Measure every contender in every setting, once a round; what fails or hangs is left out from then on."""
    draw = random.Random(0)
    settings = [(kind, shuffle, workers) for kind in WORKLOADS for shuffle in (False, True) for workers in (0, 2)]
    found: dict[tuple[Any, ...], list[Answer]] = {}
    failed: set[tuple[Any, ...]] = set()
    for number in range(rounds):
        if number and time.monotonic() > deadline:
            print(f"{number} rounds in the time that there is, not {rounds}", file=sys.stderr)
            break
        for workload, shuffle, workers in settings:
            jobs = [
                (key, kind, "throughput", name) for (key, kind), name in names.items() if kind in WORKLOADS[workload]
            ]
            if workers == 0 and ("torch", workload) in names:
                jobs.append(("torch", workload, "throughput_bare", BARE))
            if workers == 0 and ("loaderkit", workload) in names and workload == "pictures":
                jobs.append(("loaderkit", workload, "throughput_one_thread", ONE_THREAD))
            draw.shuffle(jobs)
            for key, kind, call, name in jobs:
                setting = (workload, shuffle, workers, name)
                if setting in failed:
                    continue
                arguments: dict[str, Any] = {
                    "folder": folder,
                    "kind": kind,
                    "shuffle": shuffle,
                    "workers": workers,
                    "seconds": seconds,
                }
                answer = peers[key].call(call, **arguments)[0]
                if "error" in answer:
                    failed.add(setting)
                    print(f"{name}: left out: {describe(setting)}: {answer}", file=sys.stderr)
                found.setdefault(setting, []).append(answer)
            print(f"round {number + 1}: {describe((workload, shuffle, workers))}", file=sys.stderr, flush=True)
    rows = (row_of(setting, answers, found) for setting, answers in found.items())
    return [row for row in rows if row["repeats"]]


def describe(setting: tuple[Any, ...]) -> str:
    workload, shuffle, workers = setting[:3]
    return f"{workload}, {'shuffled' if shuffle else 'in order'}, {workers} workers"


def row_of(setting: tuple[Any, ...], answers: list[Answer], found: dict[tuple[Any, ...], list[Answer]]) -> Row:
    workload, shuffle, workers, name = setting
    row: Row = {
        "workload": workload,
        "order": "shuffled" if shuffle else "in order",
        "workers": workers,
        "contender": name,
        "first_batch_ms": median(answer["first_batch_s"] * 1e3 for answer in answers if "error" not in answer),
    }
    bare = found.get((workload, shuffle, 0, BARE), [])
    mapped = found.get((workload, shuffle, workers, CONTENDERS["torch"][workload]), [])
    for epoch in ("first", "later"):
        row |= {
            f"{epoch}_epoch_samples_per_s": median(answer[epoch] for answer in answers if "error" not in answer),
            f"{epoch}_epoch_over_bare_loop": over(answers, bare, epoch),
            f"{epoch}_epoch_over_dataloader": over(answers, mapped, epoch),
        }
    return row | {"repeats": sum("error" not in answer for answer in answers)}


def over(answers: list[Answer], others: list[Answer], epoch: str) -> float:
    """Return the median over the rounds of one speed over another."""
    pairs = zip(answers, others, strict=False)
    return median(ours[epoch] / theirs[epoch] for ours, theirs in pairs if epoch in ours and epoch in theirs)


def median(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.median(found) if found else float("nan")


def costs(peers: dict[str, Peer], names: dict[tuple[str, str], str], folder: str, quick: bool) -> list[Row]:
    """Measure memory, the state and a resume at 90 % of a shuffled epoch (in order for webdataset)."""
    rows: list[Row] = []
    for (key, kind), name in names.items():
        size = len(np.load(Path(folder) / "ends.npy")) if kind != "pictures" else load_size(folder)
        batches = int(size * 0.9) // BATCH
        row: Row = {"workload": "pictures" if kind == "pictures" else "tokens", "contender": name}
        for workers in (0, 2):
            arguments: dict[str, Any] = {"folder": folder, "kind": kind, "shuffle": True, "workers": workers}
            answer = peers[key].call("memory", **arguments, seconds=0.5 if quick else 5)[0]
            row[f"memory_mb_{workers}_workers"] = answer.get("memory_mb", float("nan"))
        answer = peers[key].call("save_state", folder=folder, kind=kind, batches=batches, limit_s=180)[0]
        row["state_bytes"] = answer.get("state_bytes", answer.get("error"))
        times = []
        for _ in range(1 if quick else 5):
            answer = peers[key].call("resume_from_state", folder=folder, kind=kind, limit_s=180)[0]
            times.append(answer.get("first_batch_s", float("nan")))
            if times[0] > 5:
                break  # it replays: that is no matter of noise
        row["resume_at_90_percent_ms"] = statistics.median(times) * 1e3
        row["index_s_per_million"] = float("nan")
        if key == "loaderkit" and (kind != "pictures" or ("webdataset", "tokens") in names):
            found = [peers[key].call("index", folder=folder, kind=kind)[0] for _ in range(1 if quick else 5)]
            row["index_s_per_million"] = statistics.median(one["seconds"] / one["samples"] * 1e6 for one in found)
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    return rows


def write_csv(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "machine"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: short(value) for key, value in row.items()} | {"machine": machine()} for row in rows)


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show(rows: list[Row]) -> None:
    for row in rows:
        print("  ".join(f"{key}={short(value)}" for key, value in row.items()))


def draw(rows: list[Row], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(13, 11), layout="constrained")
    panels = figure.subplots(4, 2)
    for column, workload in enumerate(WORKLOADS):
        settings = [(order, workers) for order in ("in order", "shuffled") for workers in (0, 2)]
        for axes, (order, workers) in zip(panels[:, column], settings, strict=True):
            wanted = (workload, order, workers)
            mine = [row for row in rows if (row["workload"], row["order"], row["workers"]) == wanted]
            mine.sort(key=lambda row: row["first_epoch_samples_per_s"])
            colours = [colour_of(row["contender"]) for row in mine]
            first, later = ([row[f"{epoch}_epoch_samples_per_s"] for row in mine] for epoch in ("first", "later"))
            axes.barh([row["contender"] for row in mine], first, color=colours)
            axes.plot(later, range(len(mine)), "k|", markersize=12)
            for place, (one, other) in enumerate(zip(first, later, strict=True)):
                axes.annotate(
                    f"{one:,.0f}, {other:,.0f}",
                    (max(one, other), place),
                    xytext=(6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
            axes.margins(x=0.3)
            axes.set_title(f"{workload}, {order}, {workers} workers", loc="left", fontsize=10)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.locator_params(axis="x", nbins=4)
            axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "Samples a second: in a first epoch (bar, first number) and in a later one (|, second number)", fontsize=11
    )
    figure.supxlabel(machine(), fontsize=7, color="#6e7781")
    figure.savefig(path, dpi=110)


def colour_of(name: str) -> str:
    if name == BARE:
        return LIMIT
    return OURS if name.startswith("loaderkit") else TORCH if "DataLoader" in name else DATA


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small data, one round; writes only where --out says")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a run, where an epoch takes longer")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no round is begun later than this")
    parser.add_argument("--out", type=Path, help="where results go")
    parser.add_argument("--skip", choices=["speeds", "costs"], help="a part that is not measured again")
    parser.add_argument("--logs", type=Path, help="a folder for what the peers print")
    add_options(parser)
    given = parser.parse_args()
    rounds, seconds = (1, 0.3) if given.quick else (given.rounds, given.seconds)
    pythons = {name: python for name, python in interpreters(given).items() if name in CONTENDERS}
    folder, begun = Path(tempfile.mkdtemp()), time.monotonic()
    try:
        write_sources(folder, *((3_000, 300) if given.quick else (200_000, 5_000)))
        logs = given.logs or folder
        logs.mkdir(parents=True, exist_ok=True)
        with started(pythons, logs) as peers:
            names = prepare(peers, str(folder))
            found = (
                []
                if given.skip == "speeds"
                else speeds(peers, names, str(folder), rounds, seconds, begun + 60 * given.minutes)
            )
            spent = [] if given.skip == "costs" else costs(peers, names, str(folder), given.quick)
    finally:
        shutil.rmtree(folder)
    show(found)
    show(spent)
    if given.quick and given.out is None:
        return
    out = given.out or RESULTS
    out.mkdir(parents=True, exist_ok=True)
    if found:
        write_csv(out / "peers_throughput.csv", found)
        draw(found, out / "peers_throughput.png")
    if spent:
        write_csv(out / "peers_costs.csv", spent)


if __name__ == "__main__":
    main()
