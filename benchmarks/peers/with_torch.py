"""torch's DataLoader and torchdata's StatefulDataLoader over map-style datasets; and the bare loops."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchdata
from common import SAMPLES, SEED, Setting, augment, resume_job
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, SequentialSampler, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader
from workloads import BATCH, decode, load_pictures, load_tokens, memory_job, pack, resume_jobs, timed_job

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


def dataset_of(folder: str, kind: str) -> Any:
    return Tokens(folder) if kind == "tokens" else Pictures(folder)


def loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
    collate = pack if kind == "tokens" else default_collate
    return DataLoader(
        dataset_of(folder, kind), batch_size=BATCH, shuffle=shuffle, num_workers=workers, collate_fn=collate
    )


def stateful_loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
    collate = pack if kind == "tokens" else default_collate
    return StatefulDataLoader(
        dataset_of(folder, kind), batch_size=BATCH, shuffle=shuffle, num_workers=workers, collate_fn=collate
    )


def bare(folder: str, kind: str, shuffle: bool, workers: int) -> Iterator[Any]:  # noqa: ARG001
    """Read and decode, one after another; for tokens without a collate, pictures are stacked."""
    data = dataset_of(folder, kind)
    order = np.random.permutation(len(data)).tolist() if shuffle else range(len(data))
    if kind == "tokens":
        yield [data[order[0]]]
        yield [data[index] for index in order[1:]]
        return
    for start in range(0, len(data), BATCH):
        yield default_collate([data[index] for index in order[start : start + BATCH]])


def count(batch: Any) -> int:
    return len(batch) if isinstance(batch, list) and not isinstance(batch[0], torch.Tensor) else len(batch[0])


throughput = timed_job(loader_of)
throughput_bare = timed_job(bare, count)
memory = memory_job(loader_of)
save_state, resume_from_state = resume_jobs(stateful_loader_of)
