"""Medical volumes, augmented by TorchIO: killed, resumed, and the same bit for bit.

    pip install torchio
    python examples/fields/medical_volumes_torchio.py

TorchIO draws from torch's global generator, which the Loader seeds with each sample.
"""

from typing import Any

import torch
import torchio as tio
from killed import compare

import loaderkit as lk

VOLUMES, SIZE = 16, 24


def subject(number: int) -> tio.Subject:
    generator = torch.Generator().manual_seed(number)
    scan = torch.randn(1, SIZE, SIZE, SIZE, generator=generator)
    return tio.Subject(image=tio.ScalarImage(tensor=scan), label=tio.LabelMap(tensor=(scan > 1).long()))


class Volumes:
    """Subjects as dicts of tensors, which any collate takes."""

    def __init__(self) -> None:
        self.subjects = [subject(number) for number in range(VOLUMES)]
        self.augment = tio.Compose([tio.RandomFlip(axes=(0, 1)), tio.RandomAffine(), tio.RandomNoise(std=(0, 0.1))])

    def __len__(self) -> int:
        return VOLUMES

    def __getitem__(self, index: int) -> dict[str, Any]:
        augmented = self.augment(self.subjects[index])
        return {"image": augmented.image.data, "label": augmented.label.data}


def make(workers: int) -> lk.Loader:
    return lk.Loader(Volumes(), batch_size=2, shuffle=True, seed=1, num_workers=workers)


if __name__ == "__main__":
    compare(make)
