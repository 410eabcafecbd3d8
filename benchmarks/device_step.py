"""Measure whole training steps on CUDA: a loader's batches of pictures, copied by each prefetcher, into a network; and decoders on the device.

Batches of 256 uint8 pictures (3 x 224 x 224, 38 MB) come from worker processes, and are normalised on the device to bfloat16. The network is timm's
ResNet-50, or a few convolutions if timm is missing. `step_over_limit` is a step's time over the longer of its computation and its copy.
Contenders take turns. `host` decodes on the CPU what nvJPEG and NVDEC decode on the device.

It needs CUDA; `--quick` also runs on the CPU, with small sizes, to check that the script works.
"""

import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from lib.harness import Row, parse_options, record, tell
from PIL import Image
from report.declare import Report
from torch import Tensor

import loaderkit as lk

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OURS_NAME, INLINE = "lk.DeviceLoader, workers", "lk.DeviceLoader, no workers"
PLAIN, TIMM, SPDL, NO_DATA = (
    "DataLoader, pinned",
    "timm PrefetchLoader",
    "spdl transfer_tensor_h2d",
    "no data (the limit)",
)
DTYPE = torch.bfloat16 if CUDA else torch.float32

REPORT = Report(minutes=0.5, group="Copies to the device")
REPORT.chart("A training step: ms (less is better)", "step_ms", file="device_steps")
REPORT.chart("Decoders: pictures or frames / s", "per_s", names=("what", "decoder"), file="device_decoders")


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def normalised(pictures: Tensor) -> Tensor:
    """Normalise as timm does."""
    mean, std = (torch.tensor(each, device=DEVICE).view(1, 3, 1, 1) * 255 for each in (MEAN, STD))
    return pictures.float().sub_(mean).div_(std).to(DTYPE)


def network(quick: bool) -> torch.nn.Module:
    try:
        import timm

        made = timm.create_model("resnet18" if quick else "resnet50", num_classes=10)
    except ImportError:
        tell("device_step: timm is missing, so the network is a few convolutions.")
        widths = (3, 8, 8) if quick else (3, 128, 256, 512, 512)
        layers = [torch.nn.Conv2d(one, two, 3, stride=2) for one, two in itertools.pairwise(widths)]
        made = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    found: torch.nn.Module = made.to(DEVICE, DTYPE, memory_format=torch.channels_last)
    return found


class Training:
    """A network, and what a step of it does."""

    def __init__(self, quick: bool) -> None:
        self.net = network(quick)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 1e-3)

    def step(self, pictures: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.net(pictures.contiguous(memory_format=torch.channels_last)).square().mean().backward()
        self.optimizer.step()


def by_timm(loader: Iterable[Any]) -> Iterator[Tensor]:
    from timm.data.loader import PrefetchLoader

    for pictures, _ in PrefetchLoader(_Pairs(loader), mean=MEAN, std=STD, device=DEVICE, img_dtype=DTYPE):
        yield pictures


class _Pairs:
    """A loader's batches as timm wants them."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((batch["x"], batch["y"]) for batch in self.loader)

    def __len__(self) -> int:
        return len(self.loader)


def by_spdl(loader: Iterable[Any]) -> Iterator[Tensor]:
    """Copy in a thread of its own, as spdl's documentation says."""
    from spdl.io import transfer_tensor_h2d
    from spdl.pipeline import PipelineBuilder

    move = transfer_tensor_h2d if CUDA else (lambda batch: batch)  # it knows CUDA alone
    pipeline = PipelineBuilder().add_source(loader).pipe(move, concurrency=1).add_sink(2).build(num_threads=1)
    with pipeline.auto_stop():
        for batch in pipeline:
            yield normalised(batch["x"])


def by_torch(loader: Iterable[Any]) -> Iterator[Tensor]:
    for batch in loader:
        yield normalised(batch["x"].to(DEVICE, non_blocking=True))


def by_ours(loader: Iterable[Any]) -> Iterator[Tensor]:
    for batch in loader:
        yield batch["x"]


def steps(quick: bool) -> list[Row]:
    """Time epochs of whole training steps."""
    count, side, size, workers = (48, 32, 16, 1) if quick else (16 * 256, 224, 256, 8)
    random = np.random.default_rng(0)
    pictures = torch.from_numpy(random.integers(0, 256, (count, 3, side, side), dtype=np.uint8))
    data = lk.ArrayDataset({"x": pictures, "y": torch.arange(count)})
    plain: Any = torch_data.DataLoader(
        data,  # type: ignore[arg-type]  # it has what a Dataset has
        size,
        shuffle=True,
        num_workers=workers,
        pin_memory=CUDA,
        persistent_workers=True,
    )
    normalize = lk.Normalize(MEAN, STD, dtype=DTYPE, channels_last=True)

    def ours(loaders: int) -> Any:
        loader = lk.Loader(data, size, shuffle=True, num_workers=loaders)
        return lk.DeviceLoader(loader, DEVICE, transform=normalize)

    resident = normalised(pictures[:size].to(DEVICE))
    host = pictures[:size].pin_memory() if CUDA else pictures[:size]
    contenders: dict[str, Callable[[], Iterable[Tensor]]] = {
        NO_DATA: lambda: [resident] * (count // size),
        PLAIN: partial(by_torch, plain),
        TIMM: partial(by_timm, plain),
        SPDL: partial(by_spdl, plain),
        OURS_NAME: partial(by_ours, ours(workers)),
        INLINE: partial(by_ours, ours(0)),
    }
    training = Training(quick)
    copy_s = measured(lambda: host.to(DEVICE, non_blocking=True), 3 if quick else 20)
    compute_s = measured(lambda: training.step(resident), 3 if quick else 20)
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-1, 2 if quick else 5):
        for name in list(taken) if number % 2 else list(taken)[::-1]:
            try:
                found = epoch_of(training, contenders[name]())
            except Exception as error:  # a peer that is missing or fails
                tell(f"device_step: {name}: left out: {type(error).__name__}: {error}.")
                del taken[name]
                continue
            if number >= 0:
                taken[name].append(found)
    rows: list[Row] = []
    for name, times in taken.items():
        step = statistics.median(times)
        row: Row = {"contender": name, "step_ms": step * 1e3, "compute_ms": compute_s * 1e3, "copy_ms": copy_s * 1e3}
        row |= {"step_over_limit": step / max(compute_s, copy_s), "step_over_no_data": step / median(taken[NO_DATA])}
        rows.append(row | {"pictures_per_s": size / step, "repeats": len(times)})
    return rows


def median(times: list[float]) -> float:
    return statistics.median(times)


def measured(function: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a call, to its end on the device."""
    found = []
    for number in range(-3, repeats):
        synchronize()
        start = time.perf_counter()
        function()
        synchronize()
        if number >= 0:
            found.append(time.perf_counter() - start)
    return statistics.median(found)


def epoch_of(training: Training, batches: Iterable[Tensor]) -> float:
    """Return the seconds of a step, without the first two, which start workers and fill what is read ahead."""
    number, start = 0, 0.0
    for number, pictures in enumerate(batches, 1):
        training.step(pictures)
        if number == 2:
            synchronize()
            start = time.perf_counter()
    synchronize()
    return (time.perf_counter() - start) / (number - 2)


def decoders(quick: bool) -> list[Row]:
    """Time decoding on the device and on the host."""
    rows: list[Row] = []
    for side in (64,) if quick else (256, 512, 1024):
        files = [jpeg(side, seed) for seed in range(4 if quick else 64)]
        for where in dict.fromkeys(("cpu", DEVICE.type)):
            decode = lk.DecodePictures("jpg", device=where)
            one = partial(decode, {"jpg": files})
            add(
                rows,
                f"JPEG, {side} x {side}",
                "nvJPEG" if where == "cuda" else "host, one thread",
                len(files),
                one,
                quick,
            )
    with tempfile.TemporaryDirectory() as folder:
        try:
            films = write_films(Path(folder), 2 if quick else 8, (64, 64) if quick else (1280, 720))
        except ImportError as error:
            tell(f"device_step: video: left out: {error}.")
            return rows
        for where in dict.fromkeys(("cpu", DEVICE.type)):
            try:
                data = lk.VideoDataset(films, frames=8, decoder="torchcodec", device=where)
                read = partial(lambda data: [data[number] for number in range(len(data))], data)
                add(rows, "H.264, 8 frames", "NVDEC" if where == "cuda" else "host, one thread", len(data), read, quick)
            except Exception as error:  # torchcodec, FFmpeg's libraries or NVDEC are missing
                tell(f"device_step: video on {where}: left out: {type(error).__name__}: {str(error).splitlines()[0]}")
    return rows


def add(rows: list[Row], what: str, where: str, count: int, function: Callable[[], object], quick: bool) -> None:
    each = measured(function, 2 if quick else 8) / count
    rows.append({"what": what, "decoder": where, "ms_each": each * 1e3, "per_s": 1 / each})


def jpeg(side: int, seed: int) -> bytes:
    random, file = np.random.default_rng(seed), io.BytesIO()
    small = Image.fromarray(random.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8))
    small.resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def write_films(folder: Path, count: int, size: tuple[int, int]) -> Path:
    import av

    for number in range(count):
        with av.open(str(folder / f"{number}.mp4"), "w") as film:
            stream = film.add_stream("libx264", rate=25)
            stream.width, stream.height = size
            for frame in range(50):
                pixels = np.full((size[1], size[0], 3), 5 * frame % 256, np.uint8)
                pixels[: size[1] // 2, : 1 + 10 * frame % size[0]] = 200
                film.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
            film.mux(stream.encode())
    return folder


def main() -> None:
    options = parse_options(__doc__)
    if not CUDA:
        print("device_step: not measured, it needs CUDA, and torch.cuda.is_available() is False.")
        if not options.quick:
            return
    if not CUDA:
        torch.set_num_threads(1)
    for name, measure in (("device_steps", steps), ("device_decoders", decoders)):
        if rows := measure(options.quick):
            record(name, rows, options)


if __name__ == "__main__":
    main()
