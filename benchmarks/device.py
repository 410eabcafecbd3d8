"""Measure the way from the host to a CUDA device: copies by size and method, overlap with computation, small dtypes.

Copies are timed by the device's events. A step's limit is the longer of its computation and its copy. The script
needs CUDA and measures nothing without it; `--quick` then runs on the CPU, only to check that the script works.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils.data as torch_data
from lib.harness import Row, parse_options, record
from report.declare import Report, best, each, every
from torch import Tensor

import loaderkit as lk
from loaderkit.device.prefetch import prefetch

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
MIB = 1 << 20
OURS_NAME = "lk.DeviceLoader"

REPORT = Report(minutes=0.5, group="Copies to the device")
REPORT.target(
    "On CUDA: a step over the longer of computation and copy, the worst of all ratios",
    best(max, every("step_over_limit", file="device_overlap", way="lk.DeviceLoader")),
    most=1.03,
)
REPORT.target(
    "On CUDA: bandwidth of registered slots over that of pinned memory, the worst of 1 MiB and more",
    best(
        min,
        each(
            "of_pinned",
            file="device_copies",
            method="registered slot, copy_",
            bytes=tuple(str(mib << 20) for mib in (1, 16, 128, 1024)),
        ),
    ),
    least=0.98,
)
REPORT.chart("Copies: GB/s by bytes", "gb_per_s", names=("method",), x="bytes", log=True, file="device_copies")
REPORT.chart(
    "A step over the longer of computation and copy",
    "step_over_limit",
    names=("way",),
    x="copy_over_compute",
    file="device_overlap",
)
REPORT.chart("Small batches: ms", "ms", file="device_small")
REPORT.chart("Training: samples / s", "samples_per_s", file="device_training")


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def timed(function: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median seconds of a call on the device, and until it returns to the host."""
    there, here = [], []
    for number in range(-2, repeats):
        synchronize()
        start = time.perf_counter()
        if CUDA:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            events[0].record()
        function()
        returned = time.perf_counter() - start
        if CUDA:
            events[1].record()
            events[1].synchronize()
            taken = events[0].elapsed_time(events[1]) / 1e3
        else:
            taken = time.perf_counter() - start
        if number >= 0:
            there.append(taken)
            here.append(returned)
    return statistics.median(there), statistics.median(here)


def pin(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if CUDA else tensor


class Registered:
    """Shared memory that is page-locked in place, as slots of the ring are."""

    def __init__(self, size: int) -> None:
        self.tensor = torch.ones(size, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        if CUDA:
            error = torch.cuda.cudart().cudaHostRegister(self.tensor.data_ptr(), size, 0)  # type: ignore[no-untyped-call]
            if int(error):
                raise RuntimeError(f"device: cudaHostRegister of {size:,} bytes failed: {error}.")

    def close(self) -> None:
        if CUDA:
            torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())  # type: ignore[no-untyped-call]


def copies(quick: bool) -> list[Row]:
    """Time one copy, by size and by where the host's memory comes from."""
    rows: list[Row] = []
    for size in (1 << 14, 1 << 16) if quick else (1 << 12, 1 << 16, MIB, 16 * MIB, 128 * MIB, 1024 * MIB):
        pageable = torch.ones(size, dtype=torch.uint8)
        pinned, slot = pin(torch.ones(size, dtype=torch.uint8)), Registered(size)
        place = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        methods = methods_of(pageable, pinned, slot.tensor, place)
        for method, function in methods.items():
            there, here = timed(function, 3 if quick else 5 if size > 256 * MIB else 30)
            rows.append(
                {"method": method, "bytes": size, "gb_per_s": size / there / 1e9, "us_until_return": here * 1e6}
            )
        slot.close()
    pinned_rate = {row["bytes"]: row["gb_per_s"] for row in rows if row["method"] == "pinned, copy_"}
    return [{**row, "of_pinned": row["gb_per_s"] / pinned_rate[row["bytes"]]} for row in rows]


def methods_of(pageable: Tensor, pinned: Tensor, slot: Tensor, place: Tensor) -> dict[str, Callable[[], object]]:
    return {
        "pageable, to": lambda: pageable.to(DEVICE, copy=True),
        "pinned first, to": lambda: pin(pageable).to(DEVICE, copy=True, non_blocking=True),
        "pinned, to": lambda: pinned.to(DEVICE, copy=True, non_blocking=True),
        "pinned, copy_": lambda: place.copy_(pinned, non_blocking=True),
        "registered slot, copy_": lambda: place.copy_(slot, non_blocking=True),
    }


class Work:
    """A computation of a given length: products of matrices."""

    def __init__(self, quick: bool) -> None:
        size, dtype = (64, torch.float32) if quick else (8192, torch.bfloat16)
        self.left = torch.randn(size, size, device=DEVICE).to(dtype)
        self.out = torch.empty_like(self.left)
        self.one_s, _ = timed(lambda: self.run(1), 5)

    def run(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self.left, self.left, out=self.out)


def by_record_stream(batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """Copy one batch ahead as timm's and apex's prefetchers do, with `record_stream`."""
    if not CUDA:
        yield from batches
        return
    side, ready = torch.cuda.Stream(), None  # type: ignore[no-untyped-call]
    for batch in batches:
        with torch.cuda.stream(side):
            following = batch.to(DEVICE, non_blocking=True)
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(side)
        ready = following
        ready.record_stream(torch.cuda.current_stream())
    if ready is not None:
        yield ready


def overlap(quick: bool) -> list[Row]:
    """Time a training's step over the longer of its computation and its copy."""
    work, rows = Work(quick), []
    ways: dict[str, Callable[[list[Tensor]], Iterable[Tensor]]] = {
        OURS_NAME: lambda batches: prefetch(batches, DEVICE),
        "side stream, record_stream": by_record_stream,
        "to(non_blocking) in the step": lambda batches: (batch.to(DEVICE, non_blocking=True) for batch in batches),
    }
    for size in (1 << 14,) if quick else (16 * MIB, 64 * MIB, 256 * MIB):
        sources = [pin(torch.ones(size, dtype=torch.uint8)) for _ in range(3)]
        place = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        copy_s, _ = timed(lambda: place.copy_(sources[0], non_blocking=True), 5 if quick else 20)  # noqa: B023
        for wanted in (0.25, 2.0) if quick else (0.25, 0.5, 1.0, 2.0):
            count = max(1, round(copy_s / wanted / work.one_s))
            work_s, _ = timed(lambda: work.run(count), 5)  # noqa: B023
            steps = 6 if quick else 40
            for way, start in ways.items():
                taken = []
                for _ in range(2 if quick else 5):
                    synchronize()
                    begin = time.perf_counter()
                    for batch in start([sources[number % 3] for number in range(steps)]):
                        work.out[0, 0] += batch[0]
                        work.run(count)
                    synchronize()
                    taken.append((time.perf_counter() - begin) / steps)
                step = statistics.median(taken)
                rows.append(
                    {
                        "way": way,
                        "bytes": size,
                        "copy_ms": copy_s * 1e3,
                        "compute_ms": work_s * 1e3,
                        "copy_over_compute": copy_s / work_s,
                        "step_over_limit": step / max(copy_s, work_s),
                    }
                )
    return rows


def small_on_the_way(quick: bool) -> list[Row]:
    """Time batches that are finished on the device, and batches that the host finishes."""
    size = 2 if quick else 256
    pictures = pin(torch.randint(0, 256, (size, 3, 224, 224), dtype=torch.uint8))
    floats = pin(torch.randn(size, 3, 224, 224))
    normalize = lk.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), dtype=torch.bfloat16, channels_last=True)
    lengths = torch.randint(16, 513, (size,))
    rows = [torch.randint(0, 50_000, (int(length),)).to(torch.uint16) for length in lengths]
    pad = lk.PadRagged(dtype=torch.int64)
    joined = lk.RaggedCollate(nested=False)(rows)
    measured = pad.on_host(type(joined)(pin(joined.values), pin(joined.offsets)))
    padded = pin(lk.PadCollate(lk.Pad())([row.long() for row in rows]))

    def move(batch: Any) -> Any:
        return lk.to_device(batch, DEVICE)

    contenders: dict[str, tuple[Callable[[], object], int]] = {
        "pictures: float32 from the host": (lambda: move(floats), floats.nbytes),
        "pictures: uint8, normalised there": (lambda: normalize(move(pictures)), pictures.nbytes),
        "tokens: padded int64 from the host": (lambda: move(padded), padded.nbytes),
        "tokens: end to end as uint16, padded there": (
            lambda: pad(move(measured)),
            joined.values.nbytes + joined.offsets.nbytes,
        ),
    }
    found: list[Row] = []
    for name, (function, sent) in contenders.items():
        there, _ = timed(function, 3 if quick else 30)
        found.append({"contender": name, "bytes": sent, "ms": there * 1e3})
    return found


def training(quick: bool) -> list[Row]:
    """Time a whole loader into a training step: a small network on pictures in memory."""
    count, size = (64, 16) if quick else (20_000, 96)
    data = lk.ArrayDataset({"x": torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)})
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7, stride=4), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3)).to(
        DEVICE
    )
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    batch_size, workers = (16, 0) if quick else (256, 4)

    def step(x: Tensor) -> None:
        net(x).mean().backward()

    def by_torch(loader: Iterable[Any]) -> None:
        for batch in loader:
            x = batch["x"].to(DEVICE, non_blocking=True)
            step((x.float() / 255 - 0.5) / 0.25)

    def by_ours(loader: Iterable[Any]) -> None:
        for batch in loader:
            step(batch["x"])

    plain: Iterable[Any] = torch_data.DataLoader(
        data,  # type: ignore[arg-type]  # it has what a Dataset has
        batch_size,
        shuffle=True,
        num_workers=workers,
        pin_memory=CUDA,
        persistent_workers=workers > 0,
    )
    ours = lk.DeviceLoader(lk.Loader(data, batch_size, shuffle=True), DEVICE, transform=lk.Normalize(mean, std))
    resident = torch.rand(batch_size, 3, size, size, device=DEVICE)
    contenders: dict[str, Callable[[], object]] = {
        f"DataLoader, {workers} workers": lambda: by_torch(plain),
        OURS_NAME: lambda: by_ours(ours),
        "no data (the limit)": lambda: by_ours([{"x": resident}] * -(-count // batch_size)),
    }
    found: list[Row] = []
    for name, function in contenders.items():
        there, _ = timed(function, 2 if quick else 5)
        found.append({"contender": name, "samples_per_s": count / there, "epoch_s": there})
    return found


def main() -> None:
    options = parse_options(__doc__)
    if not CUDA:
        torch.set_num_threads(1)
        print("device: not measured, it needs CUDA, and torch.cuda.is_available() is False.")
        if not options.quick:
            return
        options = type(options)(quick=True, out=None)
    for measure in (copies, overlap, small_on_the_way, training):
        record(f"device_{measure.__name__.partition('_')[0]}", measure(options.quick), options)


if __name__ == "__main__":
    main()
