"""Images with masks, augmented by Kornia in the workers: killed, resumed, and the same bit for bit.

    pip install kornia
    python examples/fields/images_kornia.py

Kornia draws from torch's global generator, which the Loader seeds with each sample.
"""

from typing import Any

import kornia.augmentation as kornia
import torch
from killed import compare

import loaderkit as lk

IMAGES, SIZE = 32, 48


class Scenes:
    def __init__(self) -> None:
        self.augment = kornia.AugmentationSequential(
            kornia.RandomHorizontalFlip(),
            kornia.RandomAffine(20.0, scale=(0.8, 1.2)),
            kornia.ColorJitter(0.2, 0.2, 0.2, 0.1, p=0.8),
            data_keys=["input", "mask"],
        )

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(index))
        image, mask = self.augment(image, (image.mean(1, keepdim=True) > 0.5).float())
        return {"image": image[0], "mask": mask[0].bool()}


def make(workers: int) -> lk.Loader:
    return lk.Loader(Scenes(), batch_size=4, shuffle=True, seed=1, num_workers=workers)


if __name__ == "__main__":
    compare(make)
