"""Compare the pixels of a picture by torchvision, torchcodec and Pillow, and the time that each takes: one row for each kind of file.

`python benchmarks/picture_decoders.py` prints the table of docs/decisions/0081. It decodes PNG by torchcodec too, which loaderkit leaves to
Pillow.
"""

import io
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from loaderkit.datasets.images.decode import decode_picture

WIDTH, HEIGHT, REPEATS = 500, 375, 20


def files() -> dict[str, bytes]:
    """A picture with noise as files of each kind."""
    down, right = np.mgrid[0:HEIGHT, 0:WIDTH]
    smooth = [127 + 100 * np.sin(right / 17 + down / 40), 127 + 100 * np.cos(down / 11), (right + down) % 256]
    noisy = np.stack(smooth, -1) + np.random.default_rng(0).normal(0, 12, (HEIGHT, WIDTH, 3))
    image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
    deep = Image.fromarray((np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % 65_536).astype(np.uint16))
    turned = Image.Exif()
    turned[0x0112] = 6
    return {
        "JPEG 4:2:0": encoded(image, "JPEG", subsampling="4:2:0"),
        "JPEG 4:4:4": encoded(image, "JPEG", subsampling="4:4:4"),
        "JPEG progressive": encoded(image, "JPEG", progressive=True),
        "JPEG CMYK": encoded(image.convert("CMYK"), "JPEG"),
        "JPEG grey": encoded(image.convert("L"), "JPEG"),
        "JPEG turned by EXIF": encoded(image, "JPEG", exif=turned),
        "PNG": encoded(image, "PNG"),
        "PNG turned by EXIF": encoded(image, "PNG", exif=turned),
        "PNG of 16 bits": encoded(deep, "PNG"),
    }


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return an image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def difference(found: Tensor, wanted: Tensor) -> str:
    """Say how far two pictures are apart."""
    far = (found.int() - wanted.int()).abs()
    most = int(far.max())
    return "same" if not most else f"{most} at most, {float((far > 0).float().mean()):.0%} of values"


def milliseconds(decode: Callable[[], Any]) -> float:
    """Return the least time of some calls."""
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        decode()
        taken.append(time.perf_counter() - start)
    return 1000 * min(taken)


def main() -> None:
    """Print the table."""
    decode_image = import_module("torchcodec.decoders").decode_image

    print("| file | torchcodec against torchvision | Pillow against torchvision | torchvision, torchcodec, Pillow |")
    print("|---|---|---|---|")
    for name, content in files().items():
        is_jpeg = name.startswith("JPEG")
        ours = decode_picture(content, decoder="torchvision")  # Pillow's, if it is no JPEG
        codec = decode_image(content, mode="RGB")
        pillow = decode_picture(content, decoder="pillow")
        by = {
            "torchvision": partial(decode_picture, content, decoder="torchvision"),
            "torchcodec": partial(decode_image, content, mode="RGB"),
            "pillow": partial(decode_picture, content, decoder="pillow"),
        }
        taken = [milliseconds(decode) if is_jpeg or of != "torchvision" else None for of, decode in by.items()]
        times = ", ".join("-" if each is None else f"{each:.2f} ms" for each in taken)
        print(f"| {name} | {difference(codec, ours)} | {difference(pillow, ours) if is_jpeg else '-'} | {times} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
