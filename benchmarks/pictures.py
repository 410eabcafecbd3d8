"""JPEGs decoded and augmented one by one, as for training a classifier: loaders over the same dataset.

512 crops of scikit-learn's two sample pictures, 256 x 256, in memory. A sample is decoded by PIL, cropped at random to
224 x 224 and mirrored by chance, and stays uint8; batches of 32 (4.8 MB). The limit is a loop over the dataset that stacks, in one
process (with 2 workers: half of it). Each turn is a new process with another heap, as where memory lies makes decoding up to
1.4 times as long.
"""

import io
import random

import numpy as np
import torch
from contenders import Job, compare, draw_bars
from harness import Row, drain, parse_options, report
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.utils.data import default_collate

BATCH, SIDE, CROP = 32, 256, 224


def make_jpegs(count: int) -> list[bytes]:
    pictures = [Image.fromarray(picture) for picture in load_sample_images().images]
    draw, found = random.Random(0), []
    for number in range(count):
        picture, file = pictures[number % len(pictures)], io.BytesIO()
        left, top = draw.randrange(picture.width - SIDE), draw.randrange(picture.height - SIDE)
        picture.crop((left, top, left + SIDE, top + SIDE)).save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


class Augmented:
    """Decodes, crops and mirrors, with torch's random numbers."""

    def __init__(self, files: list[bytes]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = torch.from_numpy(np.array(Image.open(io.BytesIO(self._files[index]))))
        top, left = torch.randint(SIDE - CROP + 1, (2,)).tolist()
        picture = picture[top : top + CROP, left : left + CROP].permute(2, 0, 1)
        return (picture.flip(2) if torch.rand(()) < 0.5 else picture.contiguous()), index % 2


def main() -> None:
    options = parse_options(__doc__)
    data = Augmented(make_jpegs(128 if options.quick else 512))
    job = Job(dataset=data, batch_size=BATCH)
    rows: list[Row] = []
    for workers, rounds in ((0, 48), (2, 9)):
        rounds = 2 if options.quick else rounds
        rows += compare(job, workers, rounds=rounds, limit_s=360, bare=lambda: run(data), anew=True)
    title = f"JPEGs of {SIDE} x {SIDE}, decoded and augmented: throughput over the bare loop's (more is better)"
    report("pictures", rows, options, lambda figure: draw_bars(figure, rows, title))


def run(data: Augmented) -> None:
    drain(default_collate([data[index] for index in range(at, at + BATCH)]) for at in range(0, len(data), BATCH))


if __name__ == "__main__":
    main()
