"""Under Lightning: a run that leaves out bad samples is killed, and goes on as the uninterrupted one does."""

from pathlib import Path
from typing import Any

import lightning_job as jobs
import pytest
import torch
from lightning_runs import SHARDS, check_same_end, newest, run_in_process

import loaderkit as lk

BAD = [3, 11, 12, 13, 30, 44]
DATA: dict[str, dict[str, Any]] = {"map": {}, "stream": {"shards": SHARDS}}


def counts_of(job: dict[str, Any]) -> dict[str, int]:
    """The count of bad samples in each checkpoint of a job."""
    found = {}
    for path in Path(job["dir"], f"saved-{job['name']}").glob("step-*"):
        state = torch.load(path, weights_only=True)["DataModule"]["train"][0]
        found[path.name] = state["cursor"].get("bad", [state.get("bad", 0)])[0]
    return found


@pytest.mark.parametrize("data", DATA)
def test_a_killed_run_without_bad_samples_goes_on_exactly(data: str, tmp_path: Path) -> None:
    """Ids, weights, and the counts in the checkpoints that follow."""
    policy = lk.BadSamples("skip", max_rate=1)
    whole: dict[str, Any] = {"dir": str(tmp_path), "name": "whole", "bad": BAD, "save_every": 1, **DATA[data]}
    whole["loader"] = {"bad_samples": policy, "num_workers": 1}
    whole["trainer"] = {"max_epochs": 2}
    run_in_process(whole)
    steps = jobs.steps_of(whole)
    trained = sorted(each for step in steps if step["epoch"] == 0 for part in step["ids"] for each in part)
    assert trained == sorted(set(range(50)) - set(BAD))
    stopped = {**whole, "name": "stopped", "stop": {"where": "in_step", "at": [1, 4], "by": "SIGKILL"}}
    assert jobs.launch(stopped) == -9, jobs.log_of(stopped)
    resumed = {**whole, "name": "resumed", "ckpt": str(newest(tmp_path, "saved-stopped/*"))}
    run_in_process(resumed)
    assert check_same_end(whole, resumed) > 4
    counts, again = counts_of(whole), counts_of(resumed)
    assert len(again) > 4
    assert {name: counts[name] for name in again} == again
    assert len(set(again.values())) > 2
