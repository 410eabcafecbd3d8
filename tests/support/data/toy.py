"""A loader in few lines that keeps the laws, with faults to choose from; and data to go with it: for test_testing."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import loaderkit as lk


class Numbered:
    """Samples that tell their index and one random number."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "draw": torch.rand(())}


class ToyLoader:
    """Batches [index, ...] or, with draws, {"index", "draw"}; `fault` breaks one law."""

    def __init__(
        self,
        fault: str = "",
        *,
        size: int = 12,
        batch_size: int = 2,
        world: lk.World | None = None,
        num_workers: int = 0,
        persistent_workers: bool = False,
    ) -> None:
        self.dataset = range(size)
        self.fault, self.batch_size, self.world = fault, batch_size, world or lk.World()
        self.num_workers, self.persistent = num_workers, persistent_workers
        self.epoch = self.samples = 0
        self.resumed = False
        if fault == "makes with torch":
            torch.rand(())

    def __len__(self) -> int:
        wrong = (self.fault == "lengthens") - (self.fault == "uneven" and self.world.rank == 1)
        return -(-len(self.dataset) // self._step) + wrong

    def __iter__(self) -> Iterator[Any]:
        if self.fault == "begins with random":
            random.random()
        resumed, self.resumed = self.resumed, False
        if self.fault == "empty epoch at the edge" and resumed and self.epoch and not self.samples:
            return
        if self.fault == "raises with 2 workers" and self.num_workers == 2:
            raise AssertionError
        if self.fault == "raises on resume" and resumed:
            raise RuntimeError("the shard is gone")
        if self.fault == "forgets where" and resumed:
            self.samples = 0
        order, epoch = self._order(), self.epoch
        while self.epoch == epoch:
            start = self.samples + self.world.rank * self.batch_size
            indices = order[start : start + self.batch_size]
            last = self.samples + self._step >= len(order)
            self.epoch, self.samples = (epoch + 1, 0) if last else (epoch, self.samples + self._step)
            if last and self.fault == "uneven" and self.world.rank == 1:
                continue
            if last and self.fault == "skips":
                continue
            if last and self.fault == "repeats":
                indices = order[:2]
            yield self._batch(epoch, indices)

    @property
    def _step(self) -> int:
        return self.batch_size * self.world.size

    def _order(self) -> list[int]:
        seed = 0 if self.fault == "same order" else self.epoch
        if self.fault == "order of workers" and self.num_workers > 1:
            seed += 100
        return np.random.default_rng(seed).permutation(len(self.dataset)).tolist()

    def _batch(self, epoch: int, indices: list[int]) -> Any:
        generator = torch.Generator().manual_seed(epoch * 1000 + indices[0])
        if self.fault == "draws from torch":
            generator = torch.default_generator
        if self.fault == "draws by persistence" and self.persistent:
            generator.manual_seed(1)
        draw = torch.rand(len(indices), generator=generator)
        if self.fault == "draws with numpy":
            draw = torch.from_numpy(np.random.rand(len(indices)))
        if self.fault == "same order":
            draw = torch.zeros(len(indices))
        return {"index": torch.tensor(indices), "draw": draw}

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"epoch": self.epoch, "samples": self.samples}
        if self.fault == "state one ahead":
            state["samples"] += self._step
        if self.fault == "state of the rank":
            state["rank"] = self.world.rank
        if self.fault == "state with a tensor":
            state["position"] = torch.tensor(self.samples)
        if self.fault == "state with a list of all":
            state["order"] = self._order() * 100
        if self.fault == "state with an int key":
            state["seen"] = {7: 1}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.samples, self.resumed = state["epoch"], state["samples"], True
        if "rank" in state:
            self.world = lk.World(state["rank"], self.world.size)
