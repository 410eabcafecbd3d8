"""Under Lightning: a stream of unknown length beside other data, resumed after each step of two epochs."""

from pathlib import Path
from typing import Any

import lightning_job as jobs
import pytest
from lightning_runs import check_same_end, checkpoints_of, resumed_job, run_here

SHARDS = [9, 0, 7, 3, 1]  # 7 and 6 batches an epoch
# CombinedLoader asks its loaders in turn, and goes by which of them have come to their end before.
CASES: dict[str, dict[str, Any]] = {
    "shorter": {"sizes": {"a": 10}},
    "shorter, asked first": {"sizes": {"a": 10}, "stream_last": True},
    "longer": {"sizes": {"a": 40}},
    "longer, asked first": {"sizes": {"a": 40}, "stream_last": True},
    "as long": {"sizes": {"a": 28}},
    "twice as long": {"sizes": {"a": 56}},
    "one batch": {"sizes": {"a": 3}},
    "two": {"sizes": {"a": 10, "b": 36}},
    "reload every epoch": {"sizes": {"a": 28}, "trainer": {"reload_dataloaders_every_n_epochs": 1}},
    "the shortest stops": {"sizes": {"a": 40}, "mode": "min_size"},
    "reload, of data that knows its place": {
        "shards": None,
        "data": "stateful",
        "size": 21,
        "sizes": {"a": 28},
        "trainer": {"reload_dataloaders_every_n_epochs": 1},
    },
    "as long, by a step that fetches": {"sizes": {"a": 28}, "stream_last": True, "iterator": True},
    "no others, and a limit beyond its end": {"trainer": {"limit_train_batches": 20}},
}

QUICK = ("two", "reload every epoch", "no others, and a limit beyond its end")


def job(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    trainer = {"max_epochs": 2, **case.get("trainer", {})}
    return {"dir": str(folder), "name": "whole", "shards": SHARDS, "save_every": 1, **case, "trainer": trainer}


def resume(whole: dict[str, Any], path: Path) -> int:
    resumed = resumed_job(whole, path, path.stem)
    run_here(resumed)
    return check_same_end(whole, resumed)


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_a_stream_beside_other_data_resumes_after_each_step(case: str, tmp_path: Path) -> None:
    """Whichever has ended before, and begun anew: the epoch ends where it would have, and the next has the same data."""
    whole = job(tmp_path, CASES[case])
    run_here(whole)
    left = [resume(whole, path) for path in checkpoints_of(whole)]
    assert set(left) == set(range(len(jobs.steps_of(whole))))


def test_a_stream_beside_other_data_resumes_with_workers_and_within_an_accumulation(tmp_path: Path) -> None:
    """About the first epoch's end, before which the other data has ended twice."""
    case = {"sizes": {"a": 10}, "loader": {"num_workers": 2}, "trainer": {"accumulate_grad_batches": 2}}
    whole = job(tmp_path, case)
    run_here(whole)
    assert [step["epoch"] for step in jobs.steps_of(whole)] == [0] * 7 + [1] * 6
    left = [resume(whole, tmp_path / "saved-whole" / f"step-step={step}.ckpt") for step in (2, 3, 4)]
    assert left == [9, 7, 6]


def test_a_step_that_fetches_is_exact_where_it_was_stopped(tmp_path: Path) -> None:
    """By an error, before the batch of a second epoch was learnt."""
    whole = job(tmp_path, {"sizes": {"a": 10}, "iterator": True})
    run_here(whole)
    stopped = {**whole, "name": "first", "stop": {"where": "before_learning", "at": [1, 3], "by": "exception"}}
    with pytest.raises(RuntimeError, match="stopped by the test"):
        run_here(stopped)
    (path,) = tmp_path.glob("stopped*.ckpt")
    assert resume(whole, path) == 3


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_step_that_fetches_otherwise_is_told_of(tmp_path: Path) -> None:
    """Batches are counted by steps, and Lightning clears gradients by the number of the batch before."""
    several = {"dir": str(tmp_path), "name": "several", "takes": 2}
    quiet = {"limit_val_batches": 0, "max_epochs": 1}
    with pytest.warns(UserWarning, match="training_step took 2 batches of its dataloader_iter in 1 steps"):
        jobs.make_trainer(several, **quiet).fit(jobs.IteratorModel(several), jobs.make_data(several))
    with pytest.raises(ValueError, match=r"accumulate_grad_batches=2 with a training_step\(dataloader_iter\)"):
        jobs.make_trainer(several, **quiet, accumulate_grad_batches=2).fit(
            jobs.IteratorModel(several), jobs.make_data(several)
        )
