"""Measure two workers: time to the first batch, cold and the second time, and the gap between epochs.

Samples cost next to nothing. Each run is a fork of a process that has imported everything and started nothing. `cold` is from making
the first loader to its first batch, `second` the same for another loader after the first was closed. `gap` is from an epoch's last
batch to the next epoch's first. torchdata.nodes starts its workers again, so only gaps within three seconds count. grain has
no epochs, and starts by spawn alone.
"""

import importlib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from lib.apart import once
from lib.contenders import GRAIN, NODES, REFERENCE, RING, STATEFUL, Fetch, IndexBatches, Job, installed
from lib.harness import LeftOutError, Row, parse_options, record, spread, tell, turns
from report.declare import LOADER, Report, cell, each
from torch import Tensor
from torch.utils.data import DataLoader, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

import loaderkit as lk

SIZE, BATCH, WORKERS, EPOCHS = 1024, 32, 2, 20
GAPS_S, LIMIT_S = 3, 40
METHODS = ("fork", "forkserver", "spawn")
Loader = Any

REPORT = Report(minutes=4)
REPORT.target(
    "From epoch to epoch, 2 workers that stay: fork, forkserver, spawn",
    each("epoch_gap_ms", contender=LOADER, start_method=("fork", "forkserver", "spawn")),
    most=5,
    unit=" ms",
)
REPORT.line(
    "From one epoch to the next, 2 workers that stay (first batch of all, forked)",
    *(
        cell(text, each("epoch_gap_ms", "cold_ms", contender=name, start_method="fork"))
        for text, name in (("{} ms ({} ms)", LOADER), ("`DataLoader` {} ms ({} ms)", "DataLoader"))
    ),
)
for column, text in (("cold_ms", "first batch, cold"), ("epoch_gap_ms", "from epoch to epoch")):
    REPORT.speed(f"{text}, forked", column, {"start_method": "fork"}, timed=False)
REPORT.chart(
    "2 workers: start-up in ms (less is better; target of the gap: 5)",
    {"cold_ms": "first batch, cold", "second_ms": "first batch, second", "epoch_gap_ms": "from epoch to epoch"},
    names=("contender", "start_method"),
    log=True,
)


class Cheap:
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((32,), float(index))


def make(name: str, method: str, stack: ExitStack) -> Loader:
    """Return an iterable whose workers stay."""
    data: Any = Cheap()
    settings: dict[str, Any] = {"num_workers": WORKERS, "multiprocessing_context": method, "persistent_workers": True}
    if name in (LOADER, RING):
        return lk.Loader(data, BATCH, engine="ring" if name == RING else "auto", **settings)
    if name in (REFERENCE, STATEFUL):
        return (DataLoader if name == REFERENCE else StatefulDataLoader)(data, BATCH, **settings)
    job = Job(dataset=data, batch_size=BATCH, shuffle=False)
    if name == NODES:
        from torchdata import nodes

        source = nodes.SamplerWrapper(IndexBatches(job))
        workers: dict[str, Any] = {"num_workers": WORKERS, "method": "process", "multiprocessing_context": method}
        return nodes.Loader(nodes.ParallelMapper(source, Fetch(data, default_collate), **workers))
    import grain

    batches = grain.MapDataset.source(data).batch(BATCH, batch_fn=default_arrays).repeat()
    read = batches.to_iter_dataset(grain.ReadOptions(num_threads=0))
    found = iter(read.mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS)))
    stack.callback(found.close)
    return found


def default_arrays(samples: list[Tensor]) -> Any:
    return default_collate(samples).numpy()


def measure(name: str, method: str) -> dict[str, list[float]]:
    """Time a contender in this process, which has started nothing yet."""
    found: dict[str, list[float]] = {"cold": [], "second": [], "gap": []}
    for moment in ("cold", "second"):
        with ExitStack() as stack:
            started = time.perf_counter()
            loader = make(name, method, stack)
            batches = iter(loader)
            next(batches)
            found[moment].append(time.perf_counter() - started)
            if moment == "second" and name != GRAIN:
                found["gap"] = list(gaps(loader, batches))
            del batches, loader
    return found


def gaps(loader: Loader, batches: Iterator[Any]) -> Iterator[float]:
    """Yield the seconds from each epoch's last batch to the next epoch's first, from the second epoch on."""
    left, begun = SIZE // BATCH - 1, time.monotonic()
    for _ in range(EPOCHS):
        if time.monotonic() - begun > GAPS_S:
            return
        for _ in range(left):
            next(batches)
        last = time.perf_counter()
        for _ in batches:  # ends the epoch
            raise RuntimeError("startup: an epoch has more batches than were expected.")
        batches = iter(loader)
        next(batches)
        yield time.perf_counter() - last


def import_all() -> None:
    """Import what the contenders would import when they are first used."""
    wanted = ["loaderkit.loader.loader", "loaderkit.engine.ring.engine", "loaderkit.engine.torch"]
    wanted += [name for name, peer in (("torchdata.nodes", NODES), ("grain", GRAIN)) if installed(peer)]
    for name in wanted:
        importlib.import_module(name)


def main() -> None:
    options = parse_options(__doc__)
    import_all()
    cases = [(name, "fork") for name in (LOADER, RING, REFERENCE, STATEFUL)]
    cases += [(name, method) for method in METHODS[1:] for name in (LOADER, RING, REFERENCE)]
    cases += [(NODES, method) for method in METHODS if installed(NODES)]
    cases += [(GRAIN, "spawn")] if installed(GRAIN) else []
    cases = [case for case in cases if not options.quick or case[1] == "fork"]
    found: dict[tuple[str, str], list[dict[str, list[float]]]] = {case: [] for case in cases}
    begun = time.monotonic()
    for number in range(1 if options.quick else 21):
        due = [case for case in cases if number < 2 or case[1] == "fork"]  # the others take seconds
        for place in turns(len(due), number):
            try:
                found[due[place]].append(once(partial(measure, *due[place]), limit_s=LIMIT_S))
            except LeftOutError as error:
                tell(f"{', '.join(due[place])}: a run of it left out: {error}.")
        tell(f"round {number + 1}: {time.monotonic() - begun:.0f} s")
    rows: list[Row] = []
    for (name, method), runs in found.items():
        if not runs:
            tell(f"{name}, {method}: left out: no run of it came to its end.")
            continue
        taken = {key: [value for run in runs for value in run.get(key, [])] for key in ("cold", "second", "gap")}
        medians = {key: spread(values)[1] * 1e3 if values else float("nan") for key, values in taken.items()}
        rows.append(
            {
                "contender": name,
                "start_method": method,
                "cold_ms": medians["cold"],
                "second_ms": medians["second"],
                "epoch_gap_ms": medians["gap"],
                "repeats": len(taken["cold"]),
            }
        )
    record("startup", rows, options)


if __name__ == "__main__":
    main()
