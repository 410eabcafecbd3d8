"""Measure batches of 38 MB, whose memory the C library returns to the system each time.

Two jobs over real pictures (224 x 224 crops of scikit-learn's two), shuffled. *float32*: a sample is one picture as float32,
602 KB, stacked in batches of 64. *uint8 rows*: 4,096 pictures lie in one array, and batches of 256 are gathered from it. The
limit is the same loop without a loader, into new memory each time; a loader that reuses memory may be faster. lk.Loader
seeds each float32 sample unless the dataset declares that it draws nothing.
"""

import random
from functools import partial
from typing import Any

import torch
from lib.contenders import Job, compare, ours
from lib.harness import Row, drain, parse_options, record
from report.declare import BOTH, LOADER, Report, cell, each
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

import loaderkit as lk

SIDE, KINDS = 224, 64

REPORT = Report(minutes=5)
for job, text, short in (
    (
        "float32",
        "Batches of 38 MB, 64 pictures as float32 stacked, next to no work",
        "38 MB of float32 pictures a batch",
    ),
    ("uint8 rows", "The same size, 256 rows of an array in memory", "38 MB of rows in memory a batch"),
):
    REPORT.line(
        f"{text}, 0 and 2 workers: throughput over `DataLoader`'s",
        cell("{} x, {} x", each("throughput_ratio_to_reference", contender=LOADER, job=job, workers=BOTH)),
        cell(
            "{} against {} us and {} against {} us a sample",
            each("us_per_sample", job=job, workers=BOTH, contender=(LOADER, "DataLoader")),
        ),
    )
    for workers in BOTH:
        REPORT.speed(f"{short}, {workers} workers", "us_per_sample", {"workers": workers, "job": job})
REPORT.chart(
    "Batches of 38 MB: throughput over the bare loop's (more is better)",
    "throughput_ratio_to_limit",
    panels=("job", "workers"),
    mark=1,
)


def make_pictures(count: int) -> Tensor:
    """Cut pictures (count, 3, 224, 224), uint8."""
    whole = [torch.from_numpy(picture.copy()) for picture in load_sample_images().images]
    draw, found = random.Random(0), torch.empty((count, 3, SIDE, SIDE), dtype=torch.uint8)
    for number in range(count):
        picture = whole[number % len(whole)]
        top, left = draw.randrange(picture.shape[0] - SIDE), draw.randrange(picture.shape[1] - SIDE)
        found[number] = picture[top : top + SIDE, left : left + SIDE].permute(2, 0, 1)
    return found


class Floats:
    """Pictures as float32, with a class."""

    def __init__(self, pictures: Tensor, count: int) -> None:
        self._pictures, self._count = pictures, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._pictures[index % len(self._pictures)].float().div_(255), index % 2


class Still(Floats):
    """The same, and says that it draws nothing."""

    draws_nothing = True


class Gather:
    """Reads a batch of rows from its indices."""

    def __init__(self, data: Tensor) -> None:
        self._data = data

    def __call__(self, indices: Any) -> Tensor:
        return self._data.index_select(0, torch.as_tensor(indices))


def stacked(data: Floats, size: int) -> None:
    drain(default_collate([data[index] for index in range(at, at + size)]) for at in range(0, len(data), size))


def gathered(read: Gather, count: int, size: int) -> None:
    drain(map(read, torch.split(torch.randperm(count), size)))


def main() -> None:
    options = parse_options(__doc__)
    count = 512 if options.quick else 2048
    pictures = make_pictures(2 * count)  # grain makes four batches ahead, which is not to be all
    few = pictures[:KINDS].clone()
    floats, still, read = Floats(few, count), Still(few, count), Gather(pictures)
    rows: list[Row] = []
    for workers, rounds in ((0, 9), (2, 7)):
        rounds = 2 if options.quick else rounds
        rows += compare(
            Job(dataset=floats, batch_size=64),
            workers,
            rounds=rounds,
            limit_s=80,
            bare=partial(stacked, floats, 64),
            columns={"job": "float32"},
            more={f"{LOADER}, draws_nothing": partial(ours, Job(dataset=still, batch_size=64), workers, "auto")},
        )
        rows += compare(
            Job(dataset=TensorDataset(pictures), batch_size=256, gather=read, own=lk.ArrayDataset(pictures)),
            workers,
            rounds=rounds,
            limit_s=60,
            bare=partial(gathered, read, len(pictures), 256),
            columns={"job": "uint8 rows"},
        )
    record("large", rows, options)


if __name__ == "__main__":
    main()
