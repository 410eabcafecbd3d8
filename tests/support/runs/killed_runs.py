"""Runs of a script that are killed, resumed, and compared with a run that was not."""

import functools
import itertools
import json
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scripts
import torch
from job_ranks import free_port

PRELOAD = ("hugging_face",)
Survives = Callable[..., bool]


def count_exact(
    folder: Path,
    script: Path,
    *options: str,
    steps: int,
    kills: int,
    code: int = -signal.SIGKILL,
    preload: tuple[str, ...] | None = None,
) -> int:
    """Return how many of the killed runs end with the weights of the uninterrupted one.

    The script trains that many steps, prints its "final weights: ...", and takes `--folder` and `--kill-after`; it resumes
    if the folder has a checkpoint. `code` is its exit code when it is killed.
    """

    def run(name: str, *more: str, code: int = 0) -> str:
        return scripts.run(folder, script, *options, "--folder", name, *more, code=code, preload=preload)

    def weights(text: str) -> str:
        return re.findall(r"final weights: (\w+)", text)[0]

    whole = weights(run("whole"))
    exact = 0
    for number in range(kills):
        step = random.Random(number).randrange(1, steps)
        killed = run(f"killed-{number}", "--kill-after", str(step), code=code)
        assert "final weights" not in killed
        exact += weights(run(f"killed-{number}")) == whole
    return exact


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
        return scripts.run(self.folder, self.script, file, code=code, preload=PRELOAD)

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


def check_survives(
    survives: Survives,
    cases: dict[str, tuple[range, dict[str, Any]]],
    kills: int,
    own_data: tuple[Any, ...],
    still: float,
) -> None:
    """Kill that many runs, one case after another: each has to be exact. Count what the framework's own loader does.

    That loader takes the cases whose `data` is one of `own_data`. `still` is the `noise` of a job without an augmentation.
    """
    own: dict[str, list[bool]] = {"random augmentation": [], "none": []}
    for number, case in zip(range(kills), itertools.cycle(cases)):
        assert survives(case, number), (case, number)
        print(f"{number} {case}: exact", flush=True)
        if kills > 1 and cases[case][1].get("data") in own_data:
            own["random augmentation"].append(survives(case, number, loader="own"))
            own["none"].append(survives(case, number, loader="own", noise=still))
    counts = {what: f"{sum(found)} of {len(found)}" for what, found in own.items()}
    print(f"{kills} of {kills} exact; with the framework's own loader: {counts}")
