"""Under Lightning with two ranks on gloo: exact on the same ranks, each sample once on others."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning_job as jobs
import pytest
from lightning_runs import TWO_RANKS, check_same_end, ids_of, newest, resumed_job, run_in_process

pytestmark = pytest.mark.slow

SCRIPT = Path(jobs.__file__)


def launch_script(job: dict[str, Any]) -> int:
    """Run a job as a script, as a user does, so that Lightning's own launcher starts the second rank."""
    path = Path(job["dir"], f"job-{job['name']}.json")
    path.write_text(json.dumps(job))
    with Path(job["dir"], f"log-{job['name']}.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(path)], stdout=log, stderr=log, start_new_session=True
        )
        try:
            return process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # all ranks have ended
                os.killpg(process.pid, signal.SIGKILL)


def test_ranks_share_each_epoch_and_resume_exactly(tmp_path: Path) -> None:
    """Kill both ranks in the middle of an epoch: each goes on with its own batches, bit for bit."""
    whole: dict[str, Any] = {"dir": str(tmp_path), "name": "whole", "trainer": TWO_RANKS, "loader": {"num_workers": 1}}
    run_in_process(whole)
    steps = [jobs.steps_of(whole, rank) for rank in (0, 1)]
    assert [len(part) for part in steps] == [21, 21]
    for epoch in range(jobs.EPOCHS):
        assert sorted(ids_of(steps[0], epoch) + ids_of(steps[1], epoch)) == list(range(jobs.SIZE))
    stopped = {**whole, "name": "stopped", "save_every": 1}
    stopped["stop"] = {"where": "in_step", "at": [1, 3], "by": "SIGKILL"}
    assert jobs.launch(stopped) != 0
    resumed = resumed_job(whole, newest(tmp_path, "saved-stopped/step-*"))
    run_in_process(resumed)
    check_same_end(whole, resumed, begins_at=10, ranks=2)


def test_ranks_started_as_scripts_continue_a_run_of_forked_ranks(tmp_path: Path) -> None:
    whole: dict[str, Any] = {"dir": str(tmp_path), "name": "whole", "save_every": 4, "trainer": TWO_RANKS}
    run_in_process(whole)
    steps = [jobs.steps_of(whole, rank) for rank in (0, 1)]
    assert [len(part) for part in steps] == [21, 21]
    as_scripts = {"strategy": "ddp", "devices": 2}
    resumed = resumed_job(whole, tmp_path / "saved-whole" / "step-step=12.ckpt", trainer=as_scripts)
    assert launch_script(resumed) == 0, jobs.log_of(resumed)
    check_same_end(whole, resumed, begins_at=12, ranks=2)


TRAINERS: dict[int, dict[str, Any]] = {1: {}, 2: TWO_RANKS}


@pytest.fixture(scope="module")
def run_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """Return a function that runs a job on some ranks, once, with a checkpoint after each step."""

    @functools.cache
    def run(ranks: int) -> dict[str, Any]:
        folder = str(tmp_path_factory.mktemp(f"ranks-{ranks}"))
        job: dict[str, Any] = {"dir": folder, "name": "first", "save_every": 1, "trainer": TRAINERS[ranks]}
        run_in_process(job)
        return job

    return run


@pytest.mark.parametrize(
    ("before", "after", "at"), [(2, 1, 3), (2, 1, 6), (2, 1, 7), (1, 2, 5), (1, 2, 11), (1, 2, 13), (1, 2, 18)]
)
def test_a_run_resumes_on_another_number_of_ranks(
    before: int, after: int, at: int, run_on: Callable[[int], dict[str, Any]], tmp_path: Path
) -> None:
    """Each epoch has each sample once, and the Trainer's counts are those of the new number of ranks."""
    first = run_on(before)
    second: dict[str, Any] = {"dir": str(tmp_path), "name": "second", "trainer": TRAINERS[after]}
    second["ckpt"] = str(Path(first["dir"], "saved-first", f"step-step={at}.ckpt"))
    run_in_process(second)
    old = [jobs.steps_of(first, rank)[:at] for rank in range(before)]
    new = [jobs.steps_of(second, rank) for rank in range(after)]
    for epoch in range(jobs.EPOCHS):
        seen = [index for steps in (*old, *new) for index in ids_of(steps, epoch)]
        assert sorted(seen) == list(range(jobs.SIZE)), epoch
    per_epoch = {1: 13, 2: 7}
    for steps in new:
        for epoch in range(jobs.EPOCHS):
            numbers = [step["batch"] for step in steps if step["epoch"] == epoch]
            assert numbers == list(range(per_epoch[after] - len(numbers), per_epoch[after]))
    counts = jobs.final_of(second)["counts"]
    assert counts["global_step"] == at + len(new[0])
    assert counts["epoch"] == jobs.EPOCHS
    assert counts["log_steps"] == counts["global_step"]


@pytest.mark.parametrize("limit", [7, 0.5])
def test_a_resume_with_half_the_batch_size_ends_epochs_at_the_limit(limit: float, tmp_path: Path) -> None:
    """Steps of half the size: the batches done count twice, and the limit may lie behind them: 5 of 8 samples are 10 of 4."""
    first: dict[str, Any] = {"dir": str(tmp_path), "name": "first", "save_every": 1, "loader": {"batch_size": 8}}
    first["trainer"] = {"limit_train_batches": limit}
    run_in_process(first)
    per_epoch = {7: (7, 7), 0.5: (3, 6)}[limit]
    for at in (1, 2, 3, 5) if limit == 7 else (1, 2, 3):
        second: dict[str, Any] = {"dir": str(tmp_path), "name": f"second-{at}", "trainer": first["trainer"]}
        second["ckpt"] = str(tmp_path / "saved-first" / f"step-step={at}.ckpt")
        run_in_process(second)
        steps = [(step["epoch"], step["batch"]) for step in jobs.steps_of(second)]
        done = min(2 * at, per_epoch[1])
        assert steps[: per_epoch[1] - done] == [(0, batch) for batch in range(done, per_epoch[1])]
        assert steps[per_epoch[1] - done :] == [(e, batch) for e in (1, 2) for batch in range(per_epoch[1])]
        counts = jobs.final_of(second)["counts"]
        assert counts["epoch"] == jobs.EPOCHS
        assert counts["log_steps"] == counts["global_step"] == at + len(steps)
