"""Measure JPEGs that are decoded and augmented one by one, as for training a classifier.

512 crops of scikit-learn's two sample pictures, 256 x 256, in memory. A sample is decoded by PIL, cropped at random to
224 x 224, and mirrored at random; it stays uint8, in batches of 32 (4.8 MB). The limit is a loop over the dataset that stacks, in one
process (half of it with 2 workers). Each turn is a new process with its own heap, because the place of memory changes the time of decoding
by up to 40 %. Augmentations draw from torch's generator. lk.Loader seeds it for each sample, with numpy's and random's; no peer
does. "Seeded by hand" are peers whose dataset seeds the three itself. "sample_rng" is lk.Loader over augmentations that draw from
`lk.sample_rng()` alone, by processes and by threads.
"""

import io
import random
from functools import partial
from typing import Any

import numpy as np
import torch
from lib.contenders import NODES, REFERENCE, STATEFUL, Job, by_nodes, by_torch, compare, installed, ours
from lib.harness import Row, drain, parse_options, record
from lib.sources import jpegs
from PIL import Image
from report.declare import BOTH, LOADER, LOADERS, Report, each, over
from torch import Tensor
from torch.utils.data import DataLoader, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

import loaderkit as lk

BATCH, SIDE, CROP = 32, 256, 224
BY_HAND = ", seeded by hand"
OWN, THREADS = f"{LOADER}, sample_rng", f"{LOADER}, threads, sample_rng"

REPORT = Report(minutes=11)
for loader, counts in (("DataLoader", BOTH), ("StatefulDataLoader", BOTH), ("torchdata.nodes", ("0",))):
    REPORT.target(
        f"JPEGs in memory, augmented, {' and '.join(counts)} workers: throughput over that of a `{loader}` whose dataset seeds each by "
        "hand",
        over(
            *(each("us_per_sample", contender=name, workers=counts) for name in (f"{loader}, seeded by hand", LOADER))
        ),
        least=0.98,
    )
for text, name, names in (
    ("", LOADER, {}),
    (" by lk.sample_rng()", f"{LOADER}, sample_rng", {}),
    (", seeded by hand", LOADER, {loader: f"{loader}, seeded by hand" for loader in LOADERS}),
):
    for workers in BOTH:
        REPORT.speed(
            f"JPEGs in memory, augmented{text}, {workers} workers", "us_per_sample", {"workers": workers}, name, names
        )
REPORT.chart(
    "JPEGs decoded and augmented: throughput over the bare loop's (more is better)",
    "throughput_ratio_to_limit",
    panels=("workers",),
    mark=1,
)


def make_jpegs(count: int) -> list[bytes]:
    return [content for content, _ in jpegs(count, SIDE)]


class Augmented:
    """Decodes, crops and mirrors, with torch's random numbers."""

    def __init__(self, files: list[bytes]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left = torch.randint(SIDE - CROP + 1, (2,)).tolist()
        return self._cut(index, top, left, bool(torch.rand(()) < 0.5))

    def _draw(self, index: int, rng: np.random.Generator) -> tuple[Tensor, int]:
        top, left = rng.integers(SIDE - CROP + 1, size=2).tolist()
        return self._cut(index, top, left, rng.random() < 0.5)

    def _cut(self, index: int, top: int, left: int, mirrored: bool) -> tuple[Tensor, int]:
        picture = torch.from_numpy(np.array(Image.open(io.BytesIO(self._files[index]))))
        picture = picture[top : top + CROP, left : left + CROP].permute(2, 0, 1)
        return (picture.flip(2) if mirrored else picture.contiguous()), index % 2


class ByHand(Augmented):
    """Seeds the three generators for each of its samples, as fast as Python can."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        torch.default_generator.manual_seed(index)
        np.random.seed(index)
        random.seed(index)
        return super().__getitem__(index)


class Own(Augmented):
    """Draws from the sample's own generator alone."""

    draws_only_sample_rng = True

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._draw(index, lk.sample_rng())


def main() -> None:
    options = parse_options(__doc__)
    files = make_jpegs(128 if options.quick else 512)
    data = Augmented(files)
    job, own, by_hand = (Job(dataset=one, batch_size=BATCH) for one in (data, Own(files), ByHand(files)))
    rows: list[Row] = []
    for workers, rounds, programs in ((0, 44, 4), (2, 10, 1)):
        rounds, programs = (2, min(programs, 2)) if options.quick else (rounds, programs)
        more: dict[str, Any] = {
            f"{REFERENCE}{BY_HAND}": partial(by_torch, by_hand, workers, DataLoader),
            f"{STATEFUL}{BY_HAND}": partial(by_torch, by_hand, workers, StatefulDataLoader),
            OWN: partial(ours, own, workers, "auto"),
        }
        if not workers and installed(NODES):  # its processes hang here if they are forked while threads run
            more[f"{NODES}{BY_HAND}"] = partial(by_nodes, by_hand, 0, "thread")
        more |= {THREADS: partial(ours, own, workers, "threads")} if workers else {}
        bare = partial(run, data)
        rows += compare(job, workers, rounds=rounds, limit_s=480, bare=bare, more=more, programs=programs)
    record("pictures", rows, options)


def run(data: Augmented) -> None:
    drain(default_collate([data[index] for index in range(at, at + BATCH)]) for at in range(0, len(data), BATCH))


if __name__ == "__main__":
    main()
