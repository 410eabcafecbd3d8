"""Mosaics and mixes of images with boxes, by Ultralytics' dataset: killed, resumed, and the same bit for bit.

    pip install ultralytics
    python examples/fields/detection_mosaic.py

Ultralytics draws from the global generators, which the Loader seeds with each sample. But a mosaic takes its other images from those that
the worker has read before. With `buffer_enabled = False` it takes them from the whole dataset.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from killed import compare
from ultralytics.cfg import get_cfg
from ultralytics.data.augment import Mosaic
from ultralytics.data.dataset import YOLODataset
from ultralytics.utils import LOGGER

import loaderkit as lk

IMAGES, SIZE = 24, 64


def write(folder: Path) -> None:
    for name in ("images", "labels"):
        (folder / name / "train").mkdir(parents=True)
    for number in range(IMAGES):
        image = np.random.default_rng(number).integers(0, 255, (SIZE, SIZE, 3), np.uint8)
        cv2.imwrite(str(folder / "images" / "train" / f"{number:03}.png"), image)
        (folder / "labels" / "train" / f"{number:03}.txt").write_text("0 0.5 0.5 0.4 0.4\n1 0.3 0.3 0.2 0.2\n")


def mosaics(transform: Any) -> Iterator[Any]:
    """Yield the mosaics of a transform, also of those inside."""
    if isinstance(transform, Mosaic):
        yield transform
    inside = [*getattr(transform, "transforms", []), getattr(transform, "pre_transform", None)]
    for each in inside:
        if each is not None:
            yield from mosaics(each)


def make(folder: Path, workers: int) -> lk.Loader:
    data = YOLODataset(
        img_path=str(folder / "images" / "train"),
        imgsz=SIZE,
        augment=True,
        hyp=get_cfg(overrides={"mixup": 0.3}),
        data={"names": {0: "cat", 1: "dog"}, "nc": 2, "channels": 3},
        batch_size=4,
    )
    for mosaic in mosaics(data.transforms):
        mosaic.buffer_enabled = False
    return lk.Loader(data, batch_size=4, shuffle=True, seed=1, num_workers=workers, collate_fn=YOLODataset.collate_fn)


if __name__ == "__main__":
    LOGGER.setLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        compare(lambda workers: make(Path(folder), workers))
