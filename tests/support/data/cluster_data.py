"""Datasets for workers of a cluster, which import them from here."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZE, PER_SHARD = 200, 20


class Drawn:
    """Samples with random parts. Reading sample `fatal` kills its process, the first time only."""

    def __init__(self, fatal: int | None = None, once: Path | None = None, broken: int | None = None) -> None:
        self.fatal, self.once, self.broken = fatal, once, broken

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.fatal and first(self.once):
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.broken:
            raise LookupError(f"no row {index}")
        numbers = np.random.rand(1 + index % 5).tolist()  # as many as the length says
        return {"cls": index, "json": [*numbers, float(torch.rand(()))]}

    def fingerprint(self) -> str:
        return "drawn"


def first(flag: Path | None) -> bool:
    """Return whether this is the first call of all processes; always, without a flag."""
    try:
        return flag is None or flag.touch(exist_ok=False) is None
    except FileExistsError:
        return False


def length(sample: dict[str, Any]) -> int:
    """Depend on what the sample drew."""
    return int(1000 * sample["json"][0])
