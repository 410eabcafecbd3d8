"""Datasets that draw random numbers from everywhere, and exact comparison of batches: for several tests."""

import itertools
import json
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import loaderkit as lk


def draws() -> Tensor:
    """Random numbers (7,) from each generator that a transform may use."""
    return torch.tensor(
        [
            torch.rand(()).item(),
            torch.randn(()).item(),
            np.random.rand(),
            np.random.randn(),
            random.random(),
            random.gauss(0, 1),
            lk.sample_rng().random(),
        ],
        dtype=torch.float64,
    )


class Drawing:
    """Samples (index, draws) that differ with every generator."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, draws()


class DrawingFrom:
    """Another dataset's samples with draws: a transform by hand."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return self.dataset[index], draws()


def drawing_collate(samples: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Stack, and draw for the batch as well."""
    indices, numbers = zip(*samples, strict=True)
    return torch.tensor(indices), torch.stack(numbers), draws()


def add_draws(sample: Any) -> tuple[Any, Tensor]:
    """A random transform."""
    return sample, draws()


class BreakAt:
    """A transform that draws, and fails at some samples."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad

    def __call__(self, sample: Any) -> Any:
        drawn = add_draws(int(sample))
        if int(sample) in self.bad:
            raise KeyError(int(sample))
        return drawn


def rows(batches: Iterable[Any]) -> list[tuple[int, str]]:
    """Each sample's index and its draws."""
    return [(int(i), str(row.tolist())) for batch in batches for i, row in zip(batch[0], batch[1], strict=True)]


def take(loader: lk.Loader, count: int) -> tuple[list[Any], dict[str, Any]]:
    """The next batches, over epochs, and the state after them as a checkpoint holds it."""
    taken: list[Any] = []
    while len(taken) < count:
        taken += itertools.islice(loader, count - len(taken))
    return taken, json.loads(json.dumps(loader.state_dict()))


def equal(left: Any, right: Any) -> bool:
    """Say whether two batches are the same bit for bit, types included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[name], right[name]) for name in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def generator_states() -> tuple[Any, ...]:
    """All that the caller's global generators are in."""
    numpy_state = np.random.get_state(legacy=True)
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        (numpy_state[0], numpy_state[1].tolist(), *numpy_state[2:]),
    )
