"""Under Lightning: runs that are really stopped, each in its own way, and resumed in a new process."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning_job as jobs
import pytest
from lightning_runs import check_same_end, newest, resumed_job, run_in_process

PLACES = {"first epoch": [0, 5], "second epoch": [1, 7], "last batch": [1, 12], "first batch": [1, 0]}

Whole = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def whole_of(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Run a job without a stop, once for each accumulation and number of workers."""

    @functools.cache
    def make(accumulate: int, workers: int = 0) -> dict[str, Any]:
        job = {"dir": str(tmp_path_factory.mktemp("whole")), "name": "whole"}
        job |= {"trainer": {"accumulate_grad_batches": accumulate}, "loader": {"num_workers": workers}}
        run_in_process(job)
        return job

    return make


def stop_and_resume(tmp_path: Path, whole: dict[str, Any], stop: dict[str, Any], code: int, ckpt: str) -> int:
    stopped = {**whole, "dir": str(tmp_path), "name": "stopped", "stop": stop}
    if stop["by"] == "SIGKILL":
        stopped["save_every"] = 1
    assert jobs.launch(stopped) == code, jobs.log_of(stopped)
    resumed = resumed_job(whole, newest(tmp_path, ckpt), dir=str(tmp_path))
    run_in_process(resumed)
    return check_same_end(whole, resumed)


@pytest.mark.each_value
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("place", PLACES)
def test_a_killed_run_goes_on_from_its_last_checkpoint(
    place: str, accumulate: int, tmp_path: Path, whole_of: Whole
) -> None:
    epoch, batch = PLACES[place]
    stop = {"where": "in_step", "at": [epoch, batch], "by": "SIGKILL"}
    left = stop_and_resume(tmp_path, whole_of(accumulate), stop, -9, "saved-stopped/*")
    assert left == 39 - epoch * 13 - (batch - batch % accumulate)


@pytest.mark.each_value
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("where", ["in_step", "after_step"])
@pytest.mark.parametrize("place", PLACES)
def test_an_exception_saves_what_was_learnt(
    place: str, where: str, accumulate: int, tmp_path: Path, whole_of: Whole
) -> None:
    """A batch is trained on after its step, unless a gradient accumulation is still open."""
    epoch, batch = PLACES[place]
    stop = {"where": where, "at": [epoch, batch], "by": "exception"}
    left = stop_and_resume(tmp_path, whole_of(accumulate), stop, 1, "stopped.ckpt")
    learnt = batch + (where == "after_step")
    if learnt < 13:
        learnt -= learnt % accumulate
    assert left == 39 - epoch * 13 - learnt


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("place", ["first epoch", "second epoch"])
def test_sigterm_ends_the_step_and_saves(place: str, accumulate: int, tmp_path: Path, whole_of: Whole) -> None:
    epoch, batch = PLACES[place]
    stop = {"where": "in_step", "at": [epoch, batch], "by": "SIGTERM"}
    left = stop_and_resume(tmp_path, whole_of(accumulate), stop, 0, "stopped.ckpt")
    assert left == 39 - epoch * 13 - (batch + 1 - (batch + 1) % accumulate)


@pytest.mark.each_value
@pytest.mark.parametrize(("accumulate", "workers"), [(1, 0), (3, 0), (1, 2)])
@pytest.mark.parametrize("place", PLACES)
def test_slurm_signal_in_the_middle_of_a_step(
    place: str, accumulate: int, workers: int, tmp_path: Path, whole_of: Whole
) -> None:
    """SIGUSR1 saves at once: the batch in hand is yielded and not learnt."""
    epoch, batch = PLACES[place]
    stop = {"where": "in_step", "at": [epoch, batch], "by": "SIGUSR1"}
    left = stop_and_resume(tmp_path, whole_of(accumulate, workers), stop, -9, "hpc_ckpt_*.ckpt")
    assert left == 39 - epoch * 13 - (batch - batch % accumulate)
