"""Measure photographs that a training crops and resizes: decoded whole, and only as far as the crop needs.

JPEG in memory (4:2:0, quality 90) of the pictures in scikit-learn and scikit-image, enlarged, with the noise of a sensor. Out: 224 x 224 by
`v2.RandomResizedCrop` (scale 0.08 to 1), the same crops for all but DALI, which draws its own. Time is CPU time of one thread.

Difference: pixels of `lk.LazyImage` compared with those of the whole picture, for the pictures as they are, in grey levels. Part of it are the crop's
edges, which are rounded to a pixel at the decoded scale.

Accuracy: a small network tells 32 kinds of pictures (a quarter of one of eight photographs, 640 x 480, with noise and another brightness) by
random crops of 48 x 48; tested on whole pictures that are decoded in full. Each way trains from the same seeds.
"""

import io
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from lib.harness import LeftOutError, Row, interleave, parse_options, ratio, record, tell
from PIL import Image
from report.declare import Report, each
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import loaderkit as lk

SIDE = 224
WHOLE, LAZY, OPENCV, PILLOW = "decode_jpeg + resized_crop", "lk.LazyImage", "OpenCV, reduced modes", "Pillow, draft"
DALI, SPDL = "DALI, image_random_crop", "spdl, decoded and cropped by FFmpeg"
Box = tuple[int, int, int, int]  # top, left, height, width

REPORT = Report(minutes=6)
for size, least in (("4000 x 3000", 5), ("2048 x 1536", 2.5), ("1024 x 768", 1.7), ("500 x 375", 1.25)):
    REPORT.target(
        f"Photographs of {size}, cropped: `lk.LazyImage` over decoding whole",
        each("speed_over_whole", contender=LAZY, kind="speed", picture=size),
        least=least,
    )
REPORT.chart(
    "Photographs, cropped: speed over decoding whole (more is better)",
    "speed_over_whole",
    panels=("picture",),
    where={"kind": "speed"},
    mark=1,
)


def photographs() -> list[Any]:
    """Return real photographs (H, W, 3)."""
    import skimage.data
    from sklearn.datasets import load_sample_images

    names = ("astronaut", "chelsea", "coffee", "hubble_deep_field", "retina", "rocket")
    return [*load_sample_images().images, *(getattr(skimage.data, name)() for name in names)]


def as_jpeg(pixels: Any, quality: int = 90) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def enlarged(pixels: Any, width: int, height: int, random: np.random.Generator) -> Any:
    picture = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    return np.clip(picture + random.normal(0, 3, picture.shape), 0, 255).astype(np.uint8)


def boxes(height: int, width: int, count: int) -> list[Box]:
    torch.manual_seed(0)
    crop, empty = v2.RandomResizedCrop(SIDE), torch.empty(1, dtype=torch.uint8).expand(3, height, width)
    drawn = (crop.make_params([empty]) for _ in range(count))
    return [(each["top"], each["left"], each["height"], each["width"]) for each in drawn]


def whole(data: bytes, box: Box) -> Any:
    pixels = torch.ops.image.decode_jpeg.default(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3, True)
    return functional.resized_crop(pixels, *box, [SIDE, SIDE], antialias=True)


def lazy(data: bytes, box: Box) -> Any:
    return functional.resized_crop(lk.LazyImage(data), *box, [SIDE, SIDE], antialias=True)


def scale_of(box: Box) -> int:
    return next((scale for scale in (8, 4, 2) if min(box[2:]) >= SIDE * scale), 1)


def cut(pixels: Any, box: Box, scale: int) -> Any:
    top, left, height, width = (round(number / scale) for number in box)
    part = torch.from_numpy(pixels).permute(2, 0, 1)[:, top : top + height, left : left + width]
    return functional.resize(part, [SIDE, SIDE], antialias=True)


def opencv(data: bytes, box: Box) -> Any:
    import cv2

    scale = scale_of(box)
    reduced = {2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
    found = cv2.imdecode(np.frombuffer(data, np.uint8), reduced.get(scale, cv2.IMREAD_COLOR))
    return cut(found[:, :, ::-1].copy(), box, scale)


def pillow(data: bytes, box: Box) -> Any:
    scale = scale_of(box)
    with Image.open(io.BytesIO(data)) as picture:
        picture.draft("RGB", (-(-picture.width // scale), -(-picture.height // scale)))
        return cut(np.array(picture), box, scale)


def spdl(data: bytes, box: Box) -> Any:
    import spdl.io

    top, left, height, width = box
    wanted = f"crop={width}:{height}:{left}:{top},scale={SIDE}:{SIDE}:flags=bilinear,format=rgb24"
    return spdl.io.to_numpy(
        spdl.io.convert_frames(spdl.io.decode_packets(spdl.io.demux_image(data), filter_desc=wanted))
    )


EACH: dict[str, Callable[[bytes, Box], Any]] = {WHOLE: whole, LAZY: lazy, OPENCV: opencv, PILLOW: pillow, SPDL: spdl}


def by_dali(files: list[bytes], count: int) -> Callable[[], None]:
    from nvidia.dali import fn, pipeline_def, types

    arrays = [np.frombuffer(files[number % len(files)], np.uint8) for number in range(count)]

    # It must not work ahead: that would count for another contender.
    @pipeline_def(batch_size=count, num_threads=1, device_id=None, exec_async=False, exec_pipelined=False)  # type: ignore[untyped-decorator]
    def crops() -> Any:
        encoded = fn.external_source(source=lambda: arrays, dtype=types.UINT8)
        decoded = fn.decoders.image_random_crop(encoded, device="cpu", random_area=[0.08, 1.0])
        return fn.resize(decoded, size=[SIDE, SIDE], antialias=True)

    pipeline = crops()
    pipeline.build()
    pipeline.run()
    return lambda: pipeline.run() and None


def speed(width: int, height: int, count: int, rounds: int) -> list[Row]:
    random = np.random.default_rng(0)
    files = [as_jpeg(enlarged(each, width, height, random)) for each in photographs()[:: 1 if rounds > 1 else 4]]
    drawn = boxes(height, width, count)

    def run(name: str) -> None:
        try:
            for number, box in enumerate(drawn):
                EACH[name](files[number % len(files)], box)
        except ImportError as error:
            raise LeftOutError(str(error)) from error

    contenders: dict[str, Callable[[], object]] = {name: partial(run, name) for name in EACH}
    try:
        contenders[DALI] = by_dali(files, count)
    except Exception as error:  # it may be missing, or want a driver
        tell(f"photographs: {DALI}: left out: {error}.")
    taken = interleave(contenders, rounds=rounds, clock=time.process_time, label=f"photographs, {width} x {height}")
    return [
        {
            "contender": name,
            "kind": "speed",
            "picture": f"{width} x {height}",
            "ms": 1000 * statistics.median(times.values()) / count,
            "speed_over_whole": ratio(taken[WHOLE], times),
            "mean": "",
            "worst": "",
            "psnr": "",
            "accuracy": "",
        }
        for name, times in taken.items()
    ]


def difference(side: int, seeds: int) -> Row:
    crop, errors = v2.RandomResizedCrop(side), []
    for pixels in photographs():
        data = as_jpeg(pixels)
        for seed in range(seeds):
            torch.manual_seed(seed)
            wanted = crop(lk.LazyImage(data).decode())
            torch.manual_seed(seed)
            errors.append((crop(lk.LazyImage(data)).float() - wanted.float()).abs())
    squares = [float(each.square().mean()) for each in errors]
    psnr = [10 * np.log10(255**2 / square) for square in squares if square]
    row: Row = {"contender": LAZY, "kind": "difference", "picture": f"as it is, {side} x {side}", "ms": ""}
    row |= {"speed_over_whole": "", "mean": float(np.mean([float(each.mean()) for each in errors]))}
    row |= {"worst": max(float(each.max()) for each in errors), "psnr": statistics.median(psnr), "accuracy": ""}
    return row


def quarters(count: int) -> tuple[list[bytes], Any]:
    """Return pictures of 32 kinds, and their kinds."""
    random, files, kinds = np.random.default_rng(0), [], []
    sources = photographs()
    for number in range(count):
        kind = number % (4 * len(sources))
        source = sources[kind // 4]
        height, width = source.shape[0] // 2, source.shape[1] // 2
        top, left = kind % 4 // 2 * height, kind % 2 * width
        part = source[top : top + height, left : left + width].astype(np.float32) * random.uniform(0.4, 1.6)
        part += random.normal(0, 25, 3)
        files.append(as_jpeg(enlarged(np.clip(part, 0, 255).astype(np.uint8), 640, 480, random)))
        kinds.append(kind)
    return files, torch.tensor(kinds)


def accuracy(name: str, files: list[bytes], kinds: Any, epochs: int, seed: int) -> float:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 24, 5, 2), torch.nn.ReLU(), torch.nn.Conv2d(24, 48, 3, 2), torch.nn.ReLU()),
        *(torch.nn.Conv2d(48, 64, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()),
        torch.nn.Linear(256, 32),
    )
    optimizer, half = torch.optim.Adam(net.parameters(), 2e-3), len(files) // 2
    crop = v2.Compose([v2.RandomResizedCrop(48, scale=(0.3, 1)), v2.ToDtype(torch.float32, scale=True)])

    class Pictures:
        def __len__(self) -> int:
            return half

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            picture = lk.LazyImage(files[index])
            return crop(picture if name == LAZY else picture.decode()), kinds[index]

    for pictures, wanted in (
        batch for _ in range(epochs) for batch in lk.Loader(Pictures(), 32, shuffle=True, seed=seed)
    ):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(pictures), wanted).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    test = (
        torch.stack([functional.resize(lk.LazyImage(each).decode(), [48, 64]) for each in files[half:]]).float() / 255
    )
    with torch.no_grad():
        return float((net(test).argmax(dim=1) == kinds[half:]).float().mean())


def trained(count: int, epochs: int, seeds: int) -> list[Row]:
    files, kinds = quarters(count)
    rows: list[Row] = []
    for name in (WHOLE, LAZY):
        found = []
        for seed in range(seeds):
            tell(f"photographs: training with {name}, seed {seed}")
            found.append(accuracy(name, files, kinds, epochs, seed))
        row: Row = {"contender": name, "kind": "accuracy", "picture": "640 x 480", "ms": "", "speed_over_whole": ""}
        row |= {"mean": "", "worst": "", "psnr": "", "accuracy": statistics.mean(found)}
        rows.append(row | {"picture": f"640 x 480, {seeds} seeds, {min(found):.3f} to {max(found):.3f}"})
    return rows


def main() -> None:
    options = parse_options(__doc__)
    os.environ.setdefault("OPENCV_NUM_THREADS", "1")
    torch.set_num_threads(1)
    quick = options.quick
    sizes = [(500, 375, 4)] if quick else [(4000, 3000, 8), (2048, 1536, 16), (1024, 768, 32), (500, 375, 64)]
    rows = [row for width, height, count in sizes for row in speed(width, height, count, 1 if quick else 5)]
    rows += [difference(side, 1 if quick else 10) for side in ((64,) if quick else (224, 128, 64))]
    rows += trained(64, 1, 1) if quick else trained(1280, 10, 3)
    record("photographs", rows, options)


if __name__ == "__main__":
    main()
