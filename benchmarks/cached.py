"""Measure what a cache of decoded pictures buys: later epochs, and the first one that fills it.

512 crops of scikit-learn's two sample pictures, 256 x 256, as JPEGs in memory, read in batches of 32 by `lk.Loader`, which crops
and mirrors after the cache with `lk.sample_rng()`. They are decoded by PIL in each epoch, or kept by `lk.CachedDataset` in memory or in
a folder, or by diskcache in a folder: as arrays, without eviction. The limit is the same loader over decoded pictures in a
list. Every contender runs in a process of its own with one thread; the first epoch of each fills its cache and does not count.
"""

import io
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lib.apart import Make, interleave_apart
from lib.contenders import Epoch, Job, installed, ours
from lib.harness import Row, drain, parse_options, quartiles, ratio, record
from pictures import BATCH, CROP, SIDE, make_jpegs
from PIL import Image
from report.declare import Report
from torch import Tensor

import loaderkit as lk

DECODED, MEMORY, FOLDER, DISKCACHE = "decoded each epoch", "CachedDataset, memory", "CachedDataset, folder", "diskcache"
KEPT = "decoded pictures in a list (the limit)"
ROOM = 1 << 30
Sample = tuple[Tensor, int]

REPORT = Report(minutes=2)
REPORT.chart(
    "JPEGs of 256 x 256: throughput over decoding in each epoch (more is better)",
    "throughput_ratio_to_decoding",
    panels=("epoch", "workers"),
)


class Jpegs:
    """Decodes by PIL."""

    draws_nothing = True

    def __init__(self, files: list[bytes]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Sample:
        return torch.from_numpy(np.array(Image.open(io.BytesIO(self._files[index])))), index % 2


class InDiskcache(Jpegs):
    """Keeps what it has decoded in diskcache."""

    def __init__(self, files: list[bytes], folder: Path) -> None:
        import diskcache

        super().__init__(files)
        self._cache = diskcache.Cache(str(folder), size_limit=ROOM, eviction_policy="none")

    def __getitem__(self, index: int) -> Sample:
        found = self._cache.get(index)
        if found is None:
            picture, label = super().__getitem__(index)
            found = picture.numpy(), label
            self._cache.set(index, found)
        return torch.from_numpy(found[0]), found[1]


class CropAndMirror:
    """Cuts 224 x 224 at random, and mirrors half of the pictures."""

    draws_only_sample_rng = True

    def __call__(self, sample: Sample) -> Sample:
        picture, label = sample
        rng = lk.sample_rng()
        top, left = rng.integers(SIDE - CROP + 1, size=2).tolist()
        picture = picture[top : top + CROP, left : left + CROP].permute(2, 0, 1)
        return (picture.flip(2) if rng.random() < 0.5 else picture.contiguous()), label


def decoded(files: list[bytes], _: Path) -> Any:
    return lk.MapDataset(Jpegs(files), CropAndMirror())


def in_memory(files: list[bytes], _: Path) -> Any:
    return lk.CachedDataset(Jpegs(files), "memory", max_bytes=ROOM, transform=CropAndMirror())


def in_folder(files: list[bytes], folder: Path) -> Any:
    return lk.CachedDataset(Jpegs(files), folder, max_bytes=ROOM, transform=CropAndMirror())


def in_diskcache(files: list[bytes], folder: Path) -> Any:
    return lk.MapDataset(InDiskcache(files, folder), CropAndMirror())


def in_list(files: list[bytes], _: Path) -> Any:
    kept = Jpegs(files)
    return lk.MapDataset([kept[index] for index in range(len(kept))], CropAndMirror())


MAKES: dict[str, Callable[[list[bytes], Path], Any]] = {
    KEPT: in_list,
    MEMORY: in_memory,
    FOLDER: in_folder,
    DISKCACHE: in_diskcache,
    DECODED: decoded,
}


def later(make: Callable[[list[bytes], Path], Any], files: list[bytes], workers: int, stack: ExitStack) -> Epoch:
    torch.set_num_threads(1)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
    return ours(Job(dataset=make(files, folder / "cache"), batch_size=BATCH), workers, "auto", stack)


def first(make: Callable[[list[bytes], Path], Any], files: list[bytes], stack: ExitStack) -> Epoch:
    torch.set_num_threads(1)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))

    def epoch() -> None:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        drain(lk.Loader(make(files, folder / "cache"), BATCH, shuffle=True))

    return epoch


def main() -> None:
    options = parse_options(__doc__)
    files = make_jpegs(128 if options.quick else 512)
    names = [name for name in MAKES if name != DISKCACHE or installed(DISKCACHE)]
    rows: list[Row] = []
    for epoch, workers in (("later", 0), ("later", 2), ("first", 0)):
        makes: dict[str, Make] = {
            name: partial(later, MAKES[name], files, workers)
            if epoch == "later"
            else partial(first, MAKES[name], files)
            for name in names
            if epoch == "later" or name != KEPT
        }
        label = f"{epoch} epoch, {workers} workers"
        found = interleave_apart(makes, rounds=2 if options.quick else 12, limit_s=50, label=label)
        for name, taken in found.items():
            rows.append(
                {
                    "epoch": epoch,
                    "workers": workers,
                    "contender": name,
                    **quartiles("us_per_sample", taken.values(), 1 / len(files) * 1e6),
                    "throughput_ratio_to_decoding": 1 / ratio(taken, found[DECODED]),
                    "repeats": len(taken),
                }
            )
    record("cached", rows, options)


if __name__ == "__main__":
    main()
