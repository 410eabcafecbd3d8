"""torch's DataLoader and torchdata's StatefulDataLoader over map-style datasets; and the bare loops."""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchdata
from lib.peer_jobs import SAMPLES, SEED, Setting, augment, resume_job
from lib.workloads import BATCH, decode, load_pictures, load_tokens, pack, timed_job
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, SequentialSampler, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

from peers.with_webdataset import write_pictures

NAME, VERSION = "StatefulDataLoader (map)", torchdata.__version__


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return augment(index)


def write(folder: str) -> dict[str, Any]:  # noqa: ARG001 - the samples are their numbers
    return {"shards": []}


def make(setting: Setting) -> Any:
    data = Numbers()
    if setting.world > 1:
        sampler: Any = DistributedSampler(data, setting.world, setting.rank, shuffle=setting.shuffle, seed=SEED)
    elif setting.shuffle:
        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(SEED))
    else:
        sampler = SequentialSampler(data)
    return StatefulDataLoader(data, batch_size=setting.batch, sampler=sampler, num_workers=setting.workers)


resume = resume_job(make)


def write_data(folder: str, kind: str) -> dict[str, Any]:
    if kind == "pictures":
        pictures = load_pictures(folder)
        (Path(folder) / "pictures.bin").write_bytes(b"".join(content for content, _ in pictures))
        ends = np.cumsum([len(content) for content, _ in pictures])
        np.save(Path(folder) / "pictures.npy", np.stack([ends, [label for _, label in pictures]]))
        write_pictures(folder)
    return {}


class Tokens(Dataset[Any]):
    """Slices of a memory-map, as one writes it."""

    def __init__(self, folder: str) -> None:
        self._tokens, ends = load_tokens(folder)
        self._offsets = np.concatenate([[0], ends])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Any:
        return self._tokens[self._offsets[index] : self._offsets[index + 1]]


class Pictures(Dataset[Any]):
    """JPEGs at known places in one file."""

    def __init__(self, folder: str) -> None:
        ends, labels = np.load(Path(folder) / "pictures.npy")
        self._ends, self._labels = [0, *ends.tolist()], labels.tolist()
        self._file = (Path(folder) / "pictures.bin").open("rb")

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Any:
        start, end = self._ends[index], self._ends[index + 1]
        return decode({"jpg": os.pread(self._file.fileno(), end - start, start), "cls": self._labels[index]})


class TarPictures:
    """JPEGs and their classes at known places in the tar files, each read by itself."""

    def __init__(self, folder: str) -> None:
        self._files = [path.open("rb") for path in sorted((Path(folder) / "pictures-tar").glob("*.tar"))]
        self._places: list[tuple[int, int, int, int, int]] = []
        for file in self._files:
            with tarfile.open(fileobj=file) as archive:
                members = [(member.offset_data, member.size) for member in archive]
            pairs = zip(members[::2], members[1::2], strict=True)
            self._places += [(file.fileno(), *label, *picture) for label, picture in pairs]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Any:
        file, label_at, label_size, at, size = self._places[index]
        return decode({"cls": os.pread(file, label_size, label_at), "jpg": os.pread(file, size, at)})


def dataset_of(folder: str, kind: str) -> Any:
    return Tokens(folder) if kind == "tokens" else Pictures(folder)


def loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
    collate = pack if kind == "tokens" else default_collate
    return DataLoader(
        dataset_of(folder, kind), batch_size=BATCH, shuffle=shuffle, num_workers=workers, collate_fn=collate
    )


def bare(folder: str, kind: str, shuffle: bool, workers: int) -> Iterator[Any]:  # noqa: ARG001
    """Read, decode and collate, one after another. Without the collate nothing would read the tokens of a memory-map."""
    data = Tokens(folder) if kind == "tokens" else TarPictures(folder)
    order = np.random.permutation(len(data)).tolist() if shuffle else range(len(data))
    collate: Any = pack if kind == "tokens" else default_collate
    for start in range(0, len(data), BATCH):
        yield collate([data[index] for index in order[start : start + BATCH]])


throughput = timed_job(loader_of)
throughput_bare = timed_job(bare)
