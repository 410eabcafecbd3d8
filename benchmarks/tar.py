"""Small JPEGs in tar shards: what a loader costs over reading and decoding, which any loader has to do.

5,000 crops of scikit-learn's two sample pictures, 96 x 96, ten shards, each with a class; one epoch in the main
process, in order and shuffled, in batches of 64. The limit is a bare loop over places known beforehand:
seek, read, decode, stack, with the same decoder. webdataset is given that decoder too; it shuffles
in a buffer of 1,000 samples, and the shards.
"""

import io
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from harness import DATA, LIMIT, OURS, Row, drain, interleave, parse_options, ratio, report, spread
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.utils.data import default_collate

import loaderkit as lk
from loaderkit.datasets.pictures import decode_picture
from loaderkit.datasets.tartable import group
from loaderkit.datasets.tarwalk import walk

BATCH = 64
SHARDS = 10
BARE, OURS_NAME, PEER = "bare loop (the limit)", "lk.Loader(TarDataset)", "webdataset"
COLOURS = {BARE: LIMIT, OURS_NAME: OURS, PEER: DATA}
Place = tuple[int, int, int, int, int]  # shard, and offset and size of class and picture


def write_shards(folder: Path, samples: int) -> list[str]:
    pictures = [Image.fromarray(picture) for picture in load_sample_images().images]
    draw = random.Random(0)
    names = [str(folder / f"{shard:03d}.tar") for shard in range(SHARDS)]
    for shard, name in enumerate(names):
        with webdataset.TarWriter(name, encoder=False) as writer:
            for number in range(shard, samples, SHARDS):
                picture = pictures[number % len(pictures)]
                left, top = draw.randrange(picture.width - 96), draw.randrange(picture.height - 96)
                file = io.BytesIO()
                picture.crop((left, top, left + 96, top + 96)).save(file, "JPEG", quality=90)
                writer.write({"__key__": f"{number:06d}", "cls": str(number % 2).encode(), "jpg": file.getvalue()})
    return names


def find_places(names: list[str]) -> list[Place]:
    places = []
    for shard, name in enumerate(names):
        with Path(name).open("rb") as file:
            table = group(walk(file, Path(name).stat().st_size, name), name)
        for row in range(len(table.ends)):
            files = {extension: (offset, size) for extension, offset, size in table.sample(row)[1]}
            places.append((shard, *files["cls"], *files["jpg"]))
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


def decode(sample: dict[str, Any]) -> tuple[Tensor, int]:
    return decode_picture(sample["jpg"]), int(sample["cls"])


def by_webdataset(names: list[str], shuffle: bool) -> Any:
    data = webdataset.WebDataset(names, shardshuffle=SHARDS if shuffle else False)
    data = data.shuffle(1000) if shuffle else data
    return data.map(decode).batched(BATCH, collation_fn=default_collate)


def main() -> None:
    options = parse_options(__doc__)
    samples = 500 if options.quick else 5_000
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        names = write_shards(Path(folder), samples)
        places = find_places(names)
        data = lk.TarDataset(names)
        for order in ("in order", "shuffled"):
            shuffle = order == "shuffled"
            contenders = {
                BARE: partial(run, partial(bare_loop, names, places, shuffle)),
                OURS_NAME: partial(drain, lk.Loader(data, BATCH, shuffle=shuffle)),
                PEER: partial(run, partial(by_webdataset, names, shuffle)),
            }
            found = interleave(contenders, rounds=3 if options.quick else 15)
            for name, taken in found.items():
                low, middle, high = spread(taken.values())
                rows.append(
                    {
                        "order": order,
                        "contender": name,
                        "samples_per_s": samples / middle,
                        "epoch_ms": middle * 1e3,
                        "epoch_ms_q1": low * 1e3,
                        "epoch_ms_q3": high * 1e3,
                        "speed_over_limit": 1 / ratio(taken, found[BARE]),
                        "repeats": len(taken),
                    }
                )
    report("tar", rows, options, lambda figure: plot(figure, rows, samples))


def run(make: Any) -> None:
    drain(make())


def plot(figure: Any, rows: list[Row], samples: int) -> None:
    for axes, order in zip(figure.subplots(1, 2, sharey=True), ("in order", "shuffled"), strict=True):
        mine = [row for row in rows if row["order"] == order]
        values = [row["speed_over_limit"] for row in mine]
        bars = axes.barh([row["contender"] for row in mine], values, color=[COLOURS[row["contender"]] for row in mine])
        axes.bar_label(bars, [f" {value:.2f}" for value in values])
        axes.set_xlim(0, max(values) * 1.2)
        axes.invert_yaxis() if order == "in order" else None
        axes.set_xlabel("speed over the bare loop's (more is better)")
        axes.set_title(f"{samples:,} JPEGs, {order}", loc="left")


if __name__ == "__main__":
    main()
