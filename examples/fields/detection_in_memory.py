"""Batches for YOLO by Ultralytics' collate, of samples that stay in memory: killed, resumed, and the same bit for bit.

    pip install ultralytics
    python examples/fields/detection_in_memory.py

Ultralytics' collate adds each image's number to `batch_idx` in place. So a sample that stays in memory must give a copy of it.
"""

from typing import Any

import numpy as np
import torch
from killed import compare
from ultralytics.data.augment import RandomHSV
from ultralytics.data.dataset import YOLODataset

import loaderkit as lk

IMAGES, SIZE = 32, 64


def annotated(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    objects = int(rng.integers(1, 4))
    return {
        "img": rng.integers(0, 255, (SIZE, SIZE, 3), np.uint8),
        "cls": torch.zeros(objects, 1),
        "bboxes": torch.from_numpy(rng.random((objects, 4), np.float32)),
        "batch_idx": torch.zeros(objects),
    }


class Images:
    def __init__(self) -> None:
        self.samples = [annotated(number) for number in range(IMAGES)]
        self.augment = RandomHSV()

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.samples[index]
        image = self.augment({"img": sample["img"].copy()})["img"]  # it writes in place too
        return sample | {"img": torch.from_numpy(image).permute(2, 0, 1), "batch_idx": sample["batch_idx"].clone()}


def make(workers: int) -> lk.Loader:
    return lk.Loader(
        Images(), batch_size=4, shuffle=True, seed=1, num_workers=workers, collate_fn=YOLODataset.collate_fn
    )


if __name__ == "__main__":
    compare(make)
