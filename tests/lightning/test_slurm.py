"""SLURM's signal on two ranks, which are two tasks of one job: saved at once, killed, resumed exactly."""

from pathlib import Path
from typing import Any

import lightning_job as jobs
import pytest
from job_ranks import free_port
from lightning_runs import SHARDS, TWO_RANKS, check_same_end, resumed_job, run_in_process

pytestmark = pytest.mark.slow

DATA: dict[str, dict[str, Any]] = {
    "map": {"loader": {"num_workers": 1}},
    "steps": {"shards": SHARDS, "loader": {"steps": 7, "num_workers": 1}},
    "no length": {"shards": SHARDS, "loader": {"stop": "shortest"}},
}
# Where the signal finds each rank: in the same step, or rank 1 behind it already. Rank 0 writes the checkpoint.
PLACES: dict[str, list[dict[str, Any]]] = {
    "same step": [{"where": "in_step", "at": [1, 2]}, {"where": "in_step", "at": [1, 2]}],
    "apart": [{"where": "before_learning", "at": [1, 2]}, {"where": "after_step", "at": [1, 2]}],
}


@pytest.mark.parametrize("data", DATA)
def test_slurms_signal_on_two_ranks(data: str, tmp_path: Path) -> None:
    """What was not learnt comes again, on its own rank; the rest of the run is the same, bit for bit."""
    whole: dict[str, Any] = {"dir": str(tmp_path), "name": "whole", "trainer": TWO_RANKS, **DATA[data]}
    run_in_process(whole)
    steps = [jobs.steps_of(whole, rank) for rank in (0, 1)]
    learnt = sum(step["epoch"] == 0 for step in steps[0]) + 2
    assert len(steps[0]) == len(steps[1]) > learnt + 3
    for name, stops in PLACES.items():
        folder = tmp_path / name
        folder.mkdir()
        port = free_port()
        tasks = [
            {
                **whole,
                "dir": str(folder),
                "name": f"stopped-{rank}",
                "trainer": {"strategy": "ddp", "devices": 2},
                "slurm": {"rank": rank, "ranks": 2, "port": port},
                "stop": {**stop, "by": "SIGUSR1"},
            }
            for rank, stop in enumerate(stops)
        ]
        codes = jobs.launch_all(tasks)
        assert codes[0] == -9, "".join(map(jobs.log_of, tasks))
        assert codes[1] in (-9, 1), "".join(map(jobs.log_of, tasks))  # it may miss the other one first
        (saved,) = folder.glob("hpc_ckpt_*.ckpt")
        resumed = resumed_job(whole, saved, dir=str(folder))
        run_in_process(resumed)
        check_same_end(whole, resumed, begins_at=learnt, ranks=2)
