"""Measure what a batch costs on its way from a worker to the main process, by its size and number of tensors.

Batches of 40 KB, 400 KB and 4 MB, in one tensor or ten, from one worker. The worker copies a batch as if it had just made it; the
loop takes batches and does not look at them. The limit is a bare shared buffer of eight reused slots: one process copies the
tensors into a slot and writes its number into a pipe, the other makes views of it. Costs are CPU time of the main process and of
both together; `wall` is the time from batch to batch.
"""

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lib.apart import Apart
from lib.contenders import GRAIN, NODES, SPDL, AsArrays, installed
from lib.harness import Options, Row, descendants, interleave, parse_options, ratio, record, spread
from report.declare import LOADER, TENSORS, Report, cell, each, inverse
from torch import Tensor
from torch.utils.data import DataLoader

import loaderkit as lk

SIZES = (40_000, 400_000, 4_000_000)
LEAVES = (1, 10)
SLOTS = 8
BUFFER, RING, THEIRS, REFERENCE = "bare shared buffer (the limit)", "lk.Loader, ring", "lk.Loader, torch", "DataLoader"
Batch = dict[str, Tensor]
MANY = 1 << 40  # samples: nobody reaches the end

REPORT = Report(minutes=3)
for column, text in (("main_cpu", "CPU of the main process"), ("wall", "time from batch to batch")):
    tens: dict[str, Any] = {"contender": f"{LOADER}, ring", "leaves": "10", "bytes": TENSORS}
    sizes = "Worker to main, 40 KB, 400 KB and 4 MB in ten tensors"
    REPORT.target(
        f"{sizes}: `DataLoader` over ours, {text}", inverse(each(f"{column}_over_dataloader", **tens)), least=10
    )
    REPORT.target(f"{sizes}: ours over a bare shared buffer, {text}", each(f"{column}_over_limit", **tens), most=1.5)
for size, text in zip(TENSORS, ("40 KB", "400 KB", "4 MB"), strict=True):
    of = {"contender": f"{LOADER}, ring", "leaves": "10", "bytes": size}
    REPORT.line(
        f"From a worker to the main process, {text} in ten tensors: CPU of the main process a batch (time from batch to batch)",
        cell("{} us ({} us)", each("main_cpu_us", "wall_us", **of)),
        cell(
            "`DataLoader` {} x as much ({} x as long); ours over a bare shared buffer {} x ({} x)",
            inverse(each("main_cpu_over_dataloader", "wall_over_dataloader", **of)),
            each("main_cpu_over_limit", "wall_over_limit", **of),
        ),
    )
for leaves in ("1", "10"):
    for size in TENSORS:
        where = {"leaves": leaves, "bytes": size}
        REPORT.speed(f"worker to main, {int(size):,} bytes in {leaves}", "wall_us", where, f"{LOADER}, ring")
REPORT.chart(
    "From a worker to the main process, us by bytes a batch (less is better)",
    {"main_cpu_us": "CPU of the main process", "wall_us": "from batch to batch"},
    panels=("leaves",),
    x="bytes",
    log=True,
)


class Batches:
    """Whole batches, each a new copy."""

    def __init__(self, size: int, leaves: int) -> None:
        self._leaves = {f"leaf {number}": torch.rand(size // leaves // 4) for number in range(leaves)}

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: Any) -> Batch:
        return {name: leaf.clone() for name, leaf in self._leaves.items()}


class Numbers:
    """Indices without an end."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(MANY))

    def __len__(self) -> int:
        return MANY


def by_hand(data: Batches, stack: ExitStack) -> Iterator[Batch]:
    """Yield views of a bare buffer's slots in turn; a slot is reused after seven more."""
    example = data[0]
    each = [leaf.numel() * 4 for leaf in example.values()]
    starts = np.concatenate([[0], np.cumsum([-(-size // 64) * 64 for size in each])]).tolist()
    slot = -(-starts[-1] // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = torch.from_numpy(np.frombuffer(mmap.mmap(-1, SLOTS * slot), np.uint8))
    filled, filler = os.pipe()
    freed, freer = os.pipe()

    def write() -> None:
        torch.set_num_threads(1)
        while number := os.read(freed, 1):
            for start, leaf in zip(starts, data[0].values(), strict=False):
                at = number[0] * slot + start
                memory[at : at + leaf.numel() * 4].view(torch.float32).copy_(leaf)
            os.write(filler, number)

    worker = get_context("fork").Process(target=write, daemon=True)
    worker.start()
    stack.callback(worker.terminate)
    for number in range(SLOTS - 1):
        os.write(freer, bytes([number]))
    held = SLOTS - 1
    while True:
        number = os.read(filled, 1)[0]
        base = number * slot
        batch = {
            name: memory[base + start : base + start + size].view(torch.float32)
            for name, start, size in zip(example, starts, each, strict=False)
        }
        os.write(freer, bytes([held]))
        held = number
        yield batch


def by_nodes(data: Batches, stack: ExitStack) -> Iterator[Any]:  # noqa: ARG001 - ends with its process
    from torchdata import nodes

    source = nodes.IterableWrapper(Numbers())
    return iter(nodes.Loader(nodes.ParallelMapper(source, data.__getitem__, 1, method="process")))


def by_spdl(data: Batches, stack: ExitStack, ring: bool) -> Iterator[Any]:
    from spdl.pipeline import SharedMemoryRingBuffer, iterate_in_subprocess

    size = sum(leaf.numel() * 4 for leaf in data[0].values())
    arena = SharedMemoryRingBuffer((SLOTS + 2) * (size + 4096)) if ring else None
    found = iterate_in_subprocess(partial(Forever, data), buffer_size=SLOTS, arena=arena, mp_context="fork")
    batches: Any = iter(found)  # a generator
    stack.callback(batches.close)
    return batches  # type: ignore[no-any-return]


def by_grain(data: Batches, stack: ExitStack) -> Iterator[Any]:
    import grain

    batches = grain.MapDataset.range(MANY).map(AsArrays(data.__getitem__))
    read = grain.ReadOptions(num_threads=0)
    worker = grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=SLOTS)
    found: Any = iter(batches.to_iter_dataset(read).mp_prefetch(worker))
    stack.callback(found.close)
    return found  # type: ignore[no-any-return]


class Forever:
    """Batches without an end."""

    def __init__(self, data: Batches) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Batch]:
        return map(self._data.__getitem__, Numbers())


def by_loader(data: Any, stack: ExitStack, engine: Any) -> Iterator[Any]:  # noqa: ARG001
    return iter(lk.Loader(data, None, engine=engine, num_workers=1, prefetch_factor=4))


def by_torch(data: Any, stack: ExitStack) -> Iterator[Any]:  # noqa: ARG001
    numbers: Any = Numbers()
    return iter(DataLoader(data, batch_size=None, sampler=numbers, num_workers=1, prefetch_factor=4))


def contenders() -> dict[str, Callable[[Batches, ExitStack], Iterator[Any]]]:
    found: dict[str, Callable[[Batches, ExitStack], Iterator[Any]]] = {
        BUFFER: by_hand,
        RING: partial(by_loader, engine="ring"),
        THEIRS: partial(by_loader, engine="torch"),
        REFERENCE: by_torch,
    }
    if installed(NODES):
        found[NODES] = by_nodes
    if installed(SPDL):
        found[SPDL] = partial(by_spdl, ring=False)
        found[f"{SPDL}, ring buffer"] = partial(by_spdl, ring=True)
    if installed(GRAIN):
        found[GRAIN] = by_grain
    return found


class Turns:
    """A contender in its own process that takes some batches at each turn and keeps their cost."""

    def __init__(self, make: Callable[[Batches, ExitStack], Iterator[Any]], data: Batches, count: int) -> None:
        self.costs: list[tuple[float, float, float]] = []  # seconds of wall, of the main process, of both
        self._process = Apart(partial(begin, make, data, count))
        self.close = self._process.close

    def __call__(self) -> float:
        self.costs.append(self._process())
        return self.costs[-1][0]


def begin(
    make: Callable[[Batches, ExitStack], Iterator[Any]], data: Batches, count: int, stack: ExitStack
) -> Callable[[], tuple[float, float, float]]:
    torch.set_num_threads(1)
    batches = make(data, stack)
    next(batches)
    return partial(take, batches, count)


def take(batches: Iterator[Any], count: int) -> tuple[float, float, float]:
    workers = descendants(os.getpid())
    main, both, wall = time.process_time(), cpu_seconds(workers), time.perf_counter()
    for _ in range(count):
        next(batches)
    return time.perf_counter() - wall, time.process_time() - main, cpu_seconds(workers) - both


def cpu_seconds(processes: list[int]) -> float:
    """Return the CPU time that these processes and this one have taken."""
    files = [path for process in processes for path in Path(f"/proc/{process}/task").glob("*/schedstat")]
    return time.process_time() + sum(int(path.read_text().split()[0]) for path in files) / 1e9


def compare(size: int, leaves: int, options: Options) -> list[Row]:
    count, rounds = (40, 2) if options.quick else (100 if size > 10**6 else 300, 9)
    data = Batches(size, leaves)
    with ExitStack() as stack:
        turns = {name: Turns(make, data, count) for name, make in contenders().items()}
        for turn in turns.values():
            stack.callback(turn.close)
        walls = interleave(turns, rounds=rounds, limit_s=25, label=f"{size:,} bytes in {leaves}")
    costs = {  # the first turn is not counted
        kind: {
            name: dict(enumerate(cost[place] for cost in turn.costs[1:]))
            for name, turn in turns.items()
            if name in walls
        }
        for place, kind in ((1, "main"), (2, "both"))
    }
    return [
        {
            "bytes": size,
            "leaves": leaves,
            "contender": name,
            "main_cpu_us": spread(costs["main"][name].values())[1] * 1e6 / count,
            "both_cpu_us": spread(costs["both"][name].values())[1] * 1e6 / count,
            "wall_us": spread(walls[name].values())[1] * 1e6 / count,
            "main_cpu_over_limit": ratio(costs["main"][name], costs["main"][BUFFER]),
            "main_cpu_over_dataloader": ratio(costs["main"][name], costs["main"][REFERENCE]),
            "both_cpu_over_limit": ratio(costs["both"][name], costs["both"][BUFFER]),
            "both_cpu_over_dataloader": ratio(costs["both"][name], costs["both"][REFERENCE]),
            "wall_over_limit": ratio(walls[name], walls[BUFFER]),
            "wall_over_dataloader": ratio(walls[name], walls[REFERENCE]),
            "repeats": len(walls[name]),
        }
        for name in walls
    ]


def main() -> None:
    options = parse_options(__doc__)
    rows: list[Row] = []
    for leaves in LEAVES:
        for size in SIZES:
            rows += compare(size, leaves, options)
    record("transport", rows, options)


if __name__ == "__main__":
    main()
