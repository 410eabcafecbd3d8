"""Ordinary IterableDatasets of numbers, for several tests."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data as torch_data

import loaderkit as lk


class Numbers(torch_data.IterableDataset[Any]):
    """Splits itself over ranks and workers, and shuffles by the epoch. `make` turns a number into a sample."""

    def __init__(self, size: int, make: Callable[[int], Any] = int, world: lk.World | None = None) -> None:
        self.size, self.make, self.world, self.epoch = size, make, world or lk.World(), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def numbers(self) -> list[int]:
        info = torch_data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        numbers = list(range(self.size))[self.world.rank * workers + worker :: self.world.size * workers]
        random.Random(self.epoch).shuffle(numbers)
        return numbers

    def __iter__(self) -> Iterator[Any]:
        return map(self.make, self.numbers())


class StatefulNumbers(Numbers):
    """Has a state of its own, which does not tell its epoch."""

    at = 0
    set_epoch = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        numbers = self.numbers()
        while self.at < len(numbers):
            self.at += 1
            yield self.make(numbers[self.at - 1])
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]
