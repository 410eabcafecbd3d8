"""Measure small JPEGs in tar shards, in one thread: a loader over reading and decoding, which every loader must do.

5,000 crops of scikit-learn's two sample pictures, 96 x 96, in ten shards, each with a class. Epochs run in the main process, in
order and shuffled, in batches of 64. The limit is a bare loop over known offsets: seek, read, decode, stack, with the same decoder.
Both take turns in one process. Times are CPU time. `peers/peers_throughput.py` measures threads, workers and other libraries.
"""

import io
import tarfile
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lib.harness import Row, drain, interleave, parse_options, quartiles, ratio, record, spread
from lib.sources import jpegs
from report.declare import LOADER, ORDERS, Report, cell, each
from torch import Tensor

import loaderkit as lk
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.tar.index import index_tar

BATCH = 64
SHARDS = 10
BARE, OURS_NAME = "bare loop (the limit)", "lk.Loader"
Place = tuple[int, int, int, int, int]  # shard, and offset and size of class and picture

REPORT = Report(minutes=2, group="Data on disk")
REPORT.target(
    "5,000 JPEGs in tar, one thread, in order and shuffled: speed over the bare loop that reads, decodes and stacks, CPU time",
    each("speed_over_limit", order=ORDERS, contender=LOADER),
    least=0.97,
)
REPORT.line(
    cell(
        "5,000 small JPEGs in tar, in order and shuffled, one thread: speed over a bare loop that reads, decodes and stacks them "
        "(CPU time, {:.0f} rounds in turn)",
        each("repeats", order="in order", contender=LOADER),
    ),
    cell("{} and {}", each("speed_over_limit", order=ORDERS, contender=LOADER)),
)
REPORT.chart(
    "5,000 JPEGs in tar, one thread: speed over the bare loop's (more is better)", "speed_over_limit", panels=("order",)
)


def write_shards(folder: Path, samples: int) -> list[str]:
    pictures = jpegs(samples)
    names = [str(folder / f"{shard:03d}.tar") for shard in range(SHARDS)]
    for shard, name in enumerate(names):
        with tarfile.open(name, "w") as archive:
            for number in range(shard, samples, SHARDS):
                picture, label = pictures[number]
                for extension, content in (("cls", str(label).encode()), ("jpg", picture)):
                    member = tarfile.TarInfo(f"{number:06d}.{extension}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return names


def find_places(names: list[str]) -> list[Place]:
    places = []
    for shard, name in enumerate(names):
        with Path(name).open("rb") as file:
            table = index_tar(file, Path(name).stat().st_size, name)
        _, _, (offsets, sizes, _) = table.samples(list(range(len(table.ends))))
        files = list(zip(offsets, sizes, strict=True))
        places += [(shard, *label, *picture) for label, picture in zip(files[::2], files[1::2], strict=True)]
    return places


def bare_loop(names: list[str], places: list[Place], shuffle: bool) -> Iterator[tuple[Tensor, Tensor]]:
    order = np.random.permutation(len(places)) if shuffle else np.arange(len(places))
    files = [Path(name).open("rb") for name in names]  # noqa: SIM115 - closed below
    for start in range(0, len(order), BATCH):
        pictures, labels = [], []
        for index in order[start : start + BATCH].tolist():
            shard, class_at, class_size, picture_at, picture_size = places[index]
            file = files[shard]
            file.seek(class_at)
            labels.append(int(file.read(class_size)))
            file.seek(picture_at)
            pictures.append(decode_picture(file.read(picture_size)))
        yield torch.stack(pictures), torch.tensor(labels)
    for file in files:
        file.close()


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(1)
    samples = 500 if options.quick else 5_000
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        names = write_shards(Path(folder), samples)
        places = find_places(names)
        data = lk.TarDataset(names)
        check(bare_loop(names, places, shuffle=False), lk.Loader(data, BATCH))
        for order in ("in order", "shuffled"):
            shuffle = order == "shuffled"
            contenders = {
                BARE: partial(run, names, places, shuffle),
                OURS_NAME: partial(drain, lk.Loader(data, BATCH, shuffle=shuffle)),
            }
            found = interleave(contenders, rounds=3 if options.quick else 30, clock=time.process_time, label=order)
            for name, taken in found.items():
                middle = spread(taken.values())[1]
                rows.append(
                    {
                        "order": order,
                        "contender": name,
                        "samples_per_s": samples / middle,
                        **quartiles("epoch_ms", taken.values(), 1e3),
                        "speed_over_limit": 1 / ratio(taken, found[BARE]),
                        "repeats": len(taken),
                    }
                )
    record("tar", rows, options)


def check(bare: Iterator[tuple[Tensor, Tensor]], ours: Any) -> None:
    for (pictures, labels), batch in zip(bare, ours, strict=True):
        if not (torch.equal(pictures, batch["jpg"]) and torch.equal(labels, torch.as_tensor(batch["cls"]))):
            raise RuntimeError("tar: the contenders make different batches.")


def run(names: list[str], places: list[Place], shuffle: bool) -> None:
    drain(bare_loop(names, places, shuffle))


if __name__ == "__main__":
    main()
