"""Runs of a job script that are killed, resumed, and compared with a run that was not."""

import functools
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts import run

PRELOAD = ("hugging_face",)
Survives = Callable[..., bool]


class Runs:
    """Runs of one script in a folder; each job is a dict."""

    def __init__(self, folder: Path, script: str, **job: Any) -> None:
        self.folder, self.script, self.job = folder, Path(__file__).parent / script, job
        self._number = 0

    def start(self, folder: str, out: str, *, code: int = 0, **job: Any) -> str:
        """Run the script, which keeps checkpoints in `folder` and leaves `out`; return what it printed."""
        self._number += 1
        file = self.folder / f"job-{self._number}.json"
        file.write_text(json.dumps(self.job | {"folder": folder, "out": out, "port": free_port()} | job))
        return run(self.folder, self.script, file, code=code, preload=PRELOAD)

    def read(self, out: str) -> Any:
        """Return what a run left."""
        return torch.load(self.folder / out, weights_only=True)

    def same(self, one: str, other: str) -> bool:
        """Return whether two runs have the same weights, bit for bit."""
        weights = [self.read(out)["model"] for out in (one, other)]
        assert len(weights[0]) > 2
        return weights[0].keys() == weights[1].keys() and all(
            torch.equal(value, weights[1][name]) for name, value in weights[0].items()
        )

    def log(self, out: str, ranks: int) -> list[Any]:
        """Return the lines that all ranks of a run wrote, one for each batch."""
        files = [self.folder / f"{out}.{rank}.log" for rank in range(ranks)]
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def survives(self, number: int, batches: range, **job: Any) -> bool:
        """Kill a run at one of these batches, resume it, and say whether the weights are those of `whole.pt`."""
        at = random.Random(number).choice(batches)
        self.start(f"killed-{number}", f"killed-{number}.pt", kill_at=at, code=-9, **job)
        self.start(f"killed-{number}", f"resumed-{number}.pt", resume=True, **job)
        assert self.read(f"resumed-{number}.pt")["resumed"] is not None
        return self.same("whole.pt", f"resumed-{number}.pt")


def survivor(folders: pytest.TempPathFactory, script: str, cases: dict[str, tuple[range, dict[str, Any]]]) -> Survives:
    """Return what kills a run of a case, resumes it, and says whether it ends with the uninterrupted run's weights.

    Each case has the batches of a rank in which it may be killed, and its job.
    """

    @functools.cache
    def whole(case: str, **job: Any) -> Runs:
        runs = Runs(folders.mktemp("runs"), script, **cases[case][1], **job)
        runs.start("whole", "whole.pt")
        return runs

    return lambda case, number, **job: whole(case, **job).survives(number, cases[case][0])


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])
