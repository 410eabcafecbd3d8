"""Shuffled epochs over shards of mosaicml-streaming and of litdata: by each format's own loader and by ours, in one process.

Contenders take turns on the same shards, warm, with batches of 64. Rows are a number, a text and 64 floats; pictures are JPEG files of
96 x 96, which both decode by Pillow (MDS) or by torchvision (litdata). "decoding" is what decoding and stacking the same pictures takes
without any loader, over the workers: no loader can be faster than that. "first batch" is the time from nothing to the first batch of a
million rows. It needs mosaicml-streaming 0.13.0 and litdata 0.2.76, so the suite leaves it out.
"""

import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import streaming
import torch
from lib.harness import Row, drain, parse_options, record, spread, tell, turns
from litdata.streaming.writer import BinaryWriter
from PIL import Image
from report.declare import Report, each
from streaming.base.util import clean_stale_shared_memory
from torchvision.io import decode_image

import loaderkit as lk

BATCH = 64
SHARD = 1 << 22
Make = Callable[[str, int], Iterable[Any]]
TARGETS = {"MDS": 3.0, "litdata": 1.5}

REPORT = Report(minutes=0, group="Data on disk")
for name, least in TARGETS.items():
    REPORT.target(
        f"Shards of {name}, rows and pictures, 0 and 2 workers: speed over its own loader",
        each("speed_over_theirs", format=name, what=("rows", "pictures"), workers=("0", "2")),
        least=least,
    )
    REPORT.target(
        f"Shards of {name}, a million rows: its own loader's time to the first batch over ours",
        each("speed_over_theirs", format=name, what="first batch"),
        least=10,
    )
REPORT.chart(
    "Speed over that of the format's own loader (more is better)",
    "speed_over_theirs",
    names=("format", "what", "workers"),
    mark=1,
)


def rows(count: int) -> Iterator[dict[str, Any]]:
    draw = np.random.default_rng(0)
    for number in range(count):
        yield {"id": number, "text": f"row {number} " * 12, "x": draw.standard_normal(64, dtype=np.float32)}


def pictures(count: int) -> Iterator[dict[str, Any]]:
    draw = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(draw.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize((96, 96)).save(file, "JPEG", quality=90)
        yield {"id": number, "jpg": file.getvalue()}


def few(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"id": number}


def pixels(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"], "jpg": torch.from_numpy(np.array(sample["jpg"]))}


class MosaicPictures(streaming.StreamingDataset):  # type: ignore[misc]
    def __getitem__(self, index: Any) -> Any:
        return pixels(super().__getitem__(index))


def write_mds(folder: str, samples: Iterable[dict[str, Any]], columns: dict[str, str]) -> None:
    with streaming.MDSWriter(out=folder, columns=columns, size_limit=SHARD) as writer:
        for sample in samples:
            writer.write(sample)


def write_litdata(folder: str, samples: Iterable[dict[str, Any]]) -> None:
    writer = BinaryWriter(folder, chunk_bytes=SHARD)
    for number, sample in enumerate(samples):
        if "jpg" in sample:
            sample["jpg"] = Image.open(io.BytesIO(sample["jpg"]))
        if "x" in sample:
            sample["x"] = torch.from_numpy(sample["x"])
        writer[number] = sample
    writer.done()
    writer.merge()


def by_mosaicml(kind: Any, folder: str, workers: int) -> Any:
    clean_stale_shared_memory()
    data = kind(local=folder, shuffle=True, shuffle_seed=1, batch_size=BATCH)
    return streaming.StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)


def by_litdata(folder: str, workers: int) -> Any:
    data = litdata.StreamingDataset(folder, shuffle=True, drop_last=False, seed=1)
    return litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)


def ours(make: Callable[..., Any], folder: str, workers: int) -> Any:
    data = make(folder)
    return lk.Loader(data, BATCH, shuffle=True, seed=1, num_workers=workers, persistent_workers=workers > 0)


FORMATS: dict[str, dict[str, tuple[Make, Make]]] = {
    "MDS": {
        "rows": (partial(by_mosaicml, streaming.StreamingDataset), partial(ours, lk.MDSDataset)),
        "pictures": (partial(by_mosaicml, MosaicPictures), partial(ours, partial(lk.MDSDataset, transform=pixels))),
    },
    "litdata": {
        "rows": (by_litdata, partial(ours, lk.LitDataset)),
        "pictures": (by_litdata, partial(ours, lk.LitDataset)),
    },
}
COLUMNS = {
    "rows": {"id": "int", "text": "str", "x": "ndarray:float32:64"},
    "pictures": {"id": "int", "jpg": "jpeg"},
    "few": {"id": "int"},
}


class Decoding:
    """Batches of pictures that lie in memory, decoded and stacked in this process."""

    def __init__(self, decode: Callable[[bytes], Any], count: int) -> None:
        self.files = [each["jpg"] for each in pictures(count)]
        self.decode = decode

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self.files), BATCH):
            yield torch.stack([self.decode(file) for file in self.files[start : start + BATCH]])


def by_pillow(content: bytes) -> Any:
    return torch.from_numpy(np.array(Image.open(io.BytesIO(content))))


def by_torchvision(content: bytes) -> Any:
    return decode_image(torch.frombuffer(bytearray(content), dtype=torch.uint8))


DECODE = {"MDS": by_pillow, "litdata": by_torchvision}


def epochs(loaders: list[Iterable[Any]], rounds: int) -> list[list[float]]:
    """Return the seconds of each epoch of each loader; they take turns."""
    found: list[list[float]] = [[] for _ in loaders]
    for number in range(-1, rounds):
        for place in turns(len(loaders), max(0, number)):
            start = time.perf_counter()
            drain(loaders[place])
            if number >= 0:  # the first one warms up
                found[place].append(time.perf_counter() - start)
    return found


def first_batches(makes: tuple[Make, Make], folder: str, rounds: int) -> list[list[float]]:
    found: list[list[float]] = [[], []]
    for number in range(-1, rounds):
        for place in turns(2, max(0, number)):
            start = time.perf_counter()
            next(iter(makes[place](folder, 0)))
            if number >= 0:
                found[place].append(time.perf_counter() - start)
    return found


def row_of(what: str, library: str, workers: int, taken: list[list[float]], target: float) -> Row:
    ratios = [theirs / own for theirs, own in zip(*taken[:2], strict=True)]
    (_, theirs, _), (_, own, _) = map(spread, taken[:2])
    low, middle, high = spread(ratios)
    alone = spread(taken[2])[1] / max(1, workers) if len(taken) > 2 else None
    return {
        "format": library,
        "what": what,
        "workers": workers,
        "their_s": theirs,
        "our_s": own,
        "decoding_s": "" if alone is None else alone,
        "speed_over_theirs": middle,
        "q1": low,
        "q3": high,
        "most_possible": "" if alone is None else theirs / alone,
        "target": target,
        "repeats": len(ratios),
    }


def main() -> None:
    options = parse_options(__doc__)
    logging.disable(logging.WARNING)
    counts = (
        {"rows": 2_000, "pictures": 200, "few": 20_000}
        if options.quick
        else {"rows": 10_000, "pictures": 1_000, "few": 1_000_000}
    )
    rounds = 2 if options.quick else 5
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as root:
        for name, samples in (("rows", rows), ("pictures", pictures), ("few", few)):
            tell(f"writing {name}")
            jpeg = {"pictures": {"jpg": "jpeg"}}.get(name, {})
            write_mds(f"{root}/MDS-{name}", samples(counts[name]), COLUMNS[name] | jpeg)
            Path(f"{root}/litdata-{name}").mkdir()
            write_litdata(f"{root}/litdata-{name}", samples(counts[name]))
        for library, kinds in FORMATS.items():
            for what, makes in kinds.items():
                for workers in (0, 2):
                    tell(f"{library}: {what}, {workers} workers")
                    loaders = [make(f"{root}/{library}-{what}", workers) for make in makes]
                    if what == "pictures":
                        loaders.append(Decoding(DECODE[library], counts[what]))
                    taken = epochs(loaders, rounds)
                    found.append(row_of(what, library, workers, taken, TARGETS[library]))
            tell(f"{library}: first batch")
            taken = first_batches(kinds["rows"], f"{root}/{library}-few", rounds)
            found.append(row_of("first batch", library, 0, taken, 10.0))
    record("formats_mds_litdata", found, options)


if __name__ == "__main__":
    main()
