"""The shards that `index.py` indexes."""

import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SHARD = 5_000  # samples in a tar shard
Sizes = Callable[[random.Random], tuple[tuple[str, int], tuple[str, int]]]
TARS: dict[str, tuple[int, int, float, Sizes]] = {  # shards, names of each, time of change, files of a sample
    "tar, below 512 B": (20, 10, 0, lambda draw: (("cls", 1), ("txt", draw.randrange(1, 512)))),
    "tar, 1 B to 10 KB": (
        10,
        20,
        0,
        lambda draw: (("bin", draw.randrange(1, 10_241)), ("txt", draw.randrange(1, 10_241))),
    ),
    "tar, 1 B to 10 KB, extended headers": (
        10,
        4,
        1.5,
        lambda draw: (("bin", draw.randrange(1, 10_241)), ("txt", draw.randrange(1, 10_241))),
    ),
    "tar, 100 KB and a class": (20, 10, 0, lambda draw: (("cls", 1), ("jpg", draw.randrange(80_000, 120_000)))),
}


def write_tar(path: Path, start: int, changed: float, sizes: Sizes) -> None:
    """Write a shard; of large files the place alone."""
    draw, content = random.Random(start), os.urandom(10_240)
    with path.open("wb") as file:
        for number in range(start, start + SHARD):
            for extension, size in sizes(draw):
                member = tarfile.TarInfo(f"{number:09d}.{extension}")
                member.size, member.mtime = size, changed
                file.write(member.tobuf(tarfile.PAX_FORMAT))
                file.seek(size, os.SEEK_CUR) if size > len(content) else file.write(content[:size])
                file.seek(-size % 512, os.SEEK_CUR)
        file.write(bytes(10_240))


def write_lines(path: Path, start: int, samples: int) -> None:
    path.write_text(
        "".join(
            f'{{"text": "{"word " * (number % 60)}", "label": {number % 9}}}\n'
            for number in range(start, start + samples)
        )
    )


def write_rows(path: Path, start: int, samples: int) -> None:
    column = np.arange(start, start + samples)
    pq.write_table(pa.table({"x": column, "y": column % 7}), path, row_group_size=10_000)
