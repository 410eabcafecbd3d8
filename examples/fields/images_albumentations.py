"""Images with boxes and key points, augmented by albumentations or albumentationsx: killed, resumed, and the same bit for bit.

    pip install albumentations   # or albumentationsx
    python examples/fields/images_albumentations.py

Each `Compose` and each transform keeps generators of its own. The Loader seeds them with each sample, with `seed=` and without.
"""

from typing import Any

import albumentations as A  # noqa: N812 - as its documentation has it
import numpy as np
import torch
from killed import compare

import loaderkit as lk

IMAGES, SIZE = 32, 64


class Scenes:
    def __init__(self) -> None:
        self.augment = A.Compose(
            [
                A.RandomCrop(48, 48),
                A.HorizontalFlip(p=0.5),
                A.Rotate((-20, 20), p=0.8),
                A.RandomBrightnessContrast(p=0.8),
                A.GaussNoise(p=0.5),
            ],
            bbox_params=A.BboxParams("pascal_voc", label_fields=["labels"], min_visibility=0.2),
            keypoint_params=A.KeypointParams("xy", remove_invisible=False),
        )

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        rng = np.random.default_rng(index)
        image = rng.integers(0, 255, (SIZE, SIZE, 3), np.uint8)
        corners = rng.integers(0, 40, (3, 2))
        boxes = np.concatenate([corners, corners + rng.integers(8, 24, (3, 2))], 1).astype(np.float32)
        found = self.augment(image=image, bboxes=boxes, labels=[0, 1, 2], keypoints=corners.astype(np.float32))
        return {
            "image": torch.from_numpy(np.ascontiguousarray(found["image"])).permute(2, 0, 1),
            "boxes": torch.as_tensor(np.asarray(found["bboxes"], np.float32).reshape(-1, 4)),
            "labels": torch.as_tensor(np.asarray(found["labels"], np.int64)),
            "points": torch.as_tensor(np.asarray(found["keypoints"], np.float32).reshape(-1, 2)),
        }


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack images and points. Boxes differ in number, so they stay a list."""
    batch: dict[str, Any] = {key: [sample[key] for sample in samples] for key in samples[0]}
    return batch | {"image": torch.stack(batch["image"]), "points": torch.stack(batch["points"])}


def make(workers: int) -> lk.Loader:
    return lk.Loader(Scenes(), batch_size=4, shuffle=True, seed=1, num_workers=workers, collate_fn=collate)


if __name__ == "__main__":
    compare(make)
