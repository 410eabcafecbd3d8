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

import math
import random
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib.driver import Peer, options, running
from lib.harness import Options, Row, record
from lib.sources import write_sources
from report.declare import BOTH, ORDERS, Report, cell, each, fastest, joined, over
from report.results import RESULTS

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
    peers: dict[str, Peer], names: dict[tuple[str, str], str], folder: str, rounds: int, seconds: float, deadline: float
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
            f"{epoch}_epoch_over_bare_loop": paired(answers, bare, epoch),
            f"{epoch}_epoch_over_dataloader": paired(answers, mapped, epoch),
        }
    return row | {"repeats": sum("error" not in answer for answer in answers)}


def paired(answers: list[Answer], others: list[Answer], epoch: str) -> float:
    """Return the median over the rounds of one speed over another."""
    pairs = zip(answers, others, strict=False)
    return median(ours[epoch] / theirs[epoch] for ours, theirs in pairs if epoch in ours and epoch in theirs)


def median(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.median(found) if found else float("nan")


REPORT = Report(minutes=8, arguments=("--rounds", "3", "--seconds", "0.5", "--minutes", "6"), group="Data on disk")
FIRST = "first_epoch_samples_per_s"
REPORT.target(
    "200,000 token sequences, 0 workers, in order and shuffled: over the bare loop",
    each("first_epoch_over_bare_loop", workload="tokens", contender="loaderkit, documents", workers="0", order=ORDERS),
    least=2,
)
for kind, contender, without, bound, text in (
    (
        "tokens",
        "loaderkit, documents",
        ("loaderkit", "bare", "DataLoader"),
        5,
        "200,000 token sequences, 0 workers, in order and shuffled, then 2: over the best peer (`DataLoader` over a memory-map is none)",
    ),
    (
        "pictures",
        "loaderkit, tar",
        ("loaderkit", "bare"),
        1,
        "5,000 JPEGs in tar, 0 workers, in order and shuffled, then 2: over the best peer",
    ),
):
    settings = [{"workload": kind, "workers": workers, "order": order} for workers in BOTH for order in ORDERS]
    REPORT.target(
        text,
        over(
            joined(each(FIRST, contender=contender, **setting) for setting in settings),
            joined(fastest(FIRST, FIRST, without=without, **setting) for setting in settings),
        ),
        least=bound,
    )
for kind, name, what, loop in (
    ("tokens", "loaderkit, documents", "200,000 token sequences of 16 to 512", "that reads and joins them"),
    ("pictures", "loaderkit, tar, one thread", "5,000 small JPEGs in tar", "that decodes them, both in one thread"),
):
    for order in ORDERS:
        setting, epochs = (
            {"workload": kind, "order": order, "workers": "0"},
            [f"{one}_epoch_over_bare_loop" for one in ("first", "later")],
        )
        REPORT.line(
            cell(
                f"{what}, {order}, batch 64, 0 workers: speed over a bare loop {loop}, in a process's first epoch (and in a later one; "
                "{:.0f} rounds)",
                each("repeats", contender=name, **setting),
            ),
            cell("{} x ({} x)", each(*epochs, contender=name, **setting)),
            cell(
                "{name} {} x ({} x), the best of the peers",
                fastest(FIRST, *epochs, without=("loaderkit", "bare", "DataLoader"), **setting),
            ),
        )
for kind, mine, theirs, text in (
    ("tokens", "loaderkit, documents", "memory-map + DataLoader", "documents on disk"),
    ("pictures", "loaderkit, tar", "file + DataLoader", "JPEGs on disk"),
):
    for order in ORDERS:
        for workers in BOTH:
            where = {"workload": kind, "order": order, "workers": workers}
            name = f"{text}, {order}, {workers} workers"
            REPORT.speed(name, FIRST, where, mine, {"DataLoader": theirs}, more=True)
REPORT.chart(
    "Samples a second from local disk (more is better)",
    {FIRST: "first epoch", "later_epoch_samples_per_s": "later epoch"},
    panels=("workload", "order", "workers"),
)


def main() -> None:
    given = options(__doc__, rounds=9, seconds=2.0, minutes=math.inf)
    rounds, seconds = (1, 0.3) if given.quick else (given.rounds, given.seconds)
    deadline = time.monotonic() + 60 * given.minutes
    with running(given) as (folder, peers):
        write_sources(folder, *((3_000, 300) if given.quick else (200_000, 5_000)))
        names = prepare(peers, str(folder))
        found = speeds(peers, names, str(folder), rounds, seconds, deadline)
    record("peers_throughput", found, Options(quick=given.quick, out=given.out or (None if given.quick else RESULTS)))


if __name__ == "__main__":
    main()
