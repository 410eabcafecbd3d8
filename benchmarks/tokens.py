"""Measure windows of tokens from a memory-mapped file, as for training a language model.

51,200 windows of 1,024 uint16 tokens, 105 MB in the page cache, in shuffled batches of 64 (131 KB). torch's loaders read them sample
by sample, the other peers a batch at a time. The limit is a loop over gathers of whole batches, in one process.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lib.contenders import Job, compare
from lib.harness import Row, drain, parse_options, record
from report.declare import BOTH, Report
from torch import Tensor

import loaderkit as lk

BATCH, LENGTH = 64, 1024

REPORT = Report(minutes=2)
for workers in BOTH:
    REPORT.speed(f"windows of tokens, {workers} workers", "us_per_sample", {"workers": workers})
REPORT.chart(
    "Windows of 1,024 tokens, batches of 64: throughput over the bare gather's (more is better)",
    "throughput_ratio_to_limit",
    panels=("workers",),
    mark=1,
)


class Windows:
    """Slices of a memory-map, as one writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens = np.load(path, mmap_mode="r").reshape(-1, LENGTH)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(self._tokens[index]))

    def __reduce__(self) -> Any:  # numpy would copy the map
        return Windows, (self._path,)

    def gather(self, indices: Any) -> Tensor:
        """Read the windows of a batch at once."""
        return torch.from_numpy(np.take(self._tokens, np.asarray(indices), axis=0))


def main() -> None:
    options = parse_options(__doc__)
    size = 6_400 if options.quick else 51_200
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.npy"
        np.save(path, np.random.default_rng(0).integers(0, 50_000, size * LENGTH).astype(np.uint16))
        data = Windows(path)
        own = lk.TokenDataset(path, length=LENGTH)
        job = Job(dataset=data, batch_size=BATCH, gather=data.gather, own=own, most=200)
        for workers in (0, 2):
            rows += compare(job, workers, rounds=2 if options.quick else 9, limit_s=55, bare=lambda: run(data))
    record("tokens", rows, options)


def run(data: Windows) -> None:
    order = np.random.permutation(len(data))
    drain(data.gather(order[at : at + BATCH]) for at in range(0, len(order), BATCH))


if __name__ == "__main__":
    main()
