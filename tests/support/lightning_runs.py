"""What several tests share: under Lightning: a run resumed from any of its checkpoints trains as the uninterrupted one, bit for bit."""

from pathlib import Path
from typing import Any

import lightning_job as jobs
import torch


def run(job: dict[str, Any]) -> None:
    code = jobs.launch(job)
    assert code == 0, f"exit code {code}:\n{jobs.log_of(job)}"


def check_same_end(whole: dict[str, Any], resumed: dict[str, Any], *, begins_at: int | None = None) -> int:
    """Check that a resumed job went on as the whole one did, and return how many steps it had left."""
    expected, found = jobs.steps_of(whole), jobs.steps_of(resumed)
    assert len(expected) >= 9  # else the law is vacuous
    start = len(expected) - len(found)
    if begins_at is not None:
        assert start == begins_at
    assert found == expected[start:]  # ids, order, augmentation and dropout (through the loss)
    end, wanted = jobs.final_of(resumed), jobs.final_of(whole)
    assert all(torch.equal(end["weights"][name], wanted["weights"][name]) for name in wanted["weights"])
    if found:
        assert end["counts"] == wanted["counts"]
    return len(found)


PER_PROCESS = 8  # a process takes a third of a job's time


def resume_everywhere(whole: dict[str, Any], checkpoints: list[Path], name: str = "resumed") -> list[int]:
    """Resume from each of these checkpoints, in new processes, and return how many steps each had left."""
    unsaved = {name: value for name, value in whole.items() if name != "save_every"}
    resumes = [{**unsaved, "name": f"{name}-{n}", "ckpt": str(path)} for n, path in enumerate(checkpoints)]
    for start in range(0, len(resumes), PER_PROCESS):
        job = {"dir": whole["dir"], "name": f"{name}-from-{start}", "jobs": resumes[start : start + PER_PROCESS]}
        assert jobs.launch(job, jobs.run_each) == 0, jobs.log_of(job)
    return [check_same_end(whole, resumed) for resumed in resumes]


def checkpoints_of(whole: dict[str, Any]) -> list[Path]:
    return sorted(Path(whole["dir"], "saved-whole").iterdir())
