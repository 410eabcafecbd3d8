"""Patches of medical volumes, augmented by MONAI: killed, resumed, and the same bit for bit.

    pip install monai
    python examples/fields/medical_volumes_monai.py

MONAI's transforms keep generators of their own, in attributes and in a class. The Loader finds them and seeds them with each sample.
"""

from typing import Any

import torch
from killed import compare
from monai.data import Dataset, list_data_collate
from monai.transforms import (
    Compose,
    RandAdjustContrastd,
    RandFlipd,
    RandGaussianNoised,
    RandRotate90d,
    RandSpatialCropd,
)

import loaderkit as lk

VOLUMES, SIZE = 24, 32


def volume(number: int) -> dict[str, Any]:
    """Return a noisy scan of a ball, and where the ball is."""
    generator = torch.Generator().manual_seed(number)
    places = torch.stack(torch.meshgrid(*[torch.arange(SIZE)] * 3, indexing="ij"))
    middle = torch.randint(8, SIZE - 8, (3, 1, 1, 1), generator=generator)
    ball = ((places - middle) ** 2).sum(0, keepdim=True) < 36
    return {
        "image": ball + 0.1 * torch.randn(ball.shape, generator=generator),
        "label": ball.long(),
        "name": f"scan {number}",
    }


def make(workers: int) -> lk.Loader:
    keys = ["image", "label"]
    augment = Compose(
        [
            RandSpatialCropd(keys, (24, 24, 24), random_size=False),
            RandFlipd(keys, prob=0.5, spatial_axis=0),
            RandRotate90d(keys, prob=0.5),
            RandGaussianNoised("image", prob=0.9),
            RandAdjustContrastd("image", prob=0.5),
        ]
    )
    data = Dataset([volume(number) for number in range(VOLUMES)], augment)
    # MONAI's own collate keeps what each image says about itself. `decollate_batch` can take its batches apart.
    return lk.Loader(data, batch_size=4, shuffle=True, seed=1, num_workers=workers, collate_fn=list_data_collate)


if __name__ == "__main__":
    compare(make)
