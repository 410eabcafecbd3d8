"""Under Lightning: a run resumed from any of its checkpoints trains as the uninterrupted one, bit for bit."""

from pathlib import Path
from typing import Any

import lightning_job as jobs
import pytest
import torch
from lightning_runs import check_same_end, checkpoints_of, newest, resume_everywhere, resumed_job, run_in_process

# Which of Trainer's options is in force, and the job's other settings.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"trainer": {"accumulate_grad_batches": 3}},
    "validation within the epoch": {"trainer": {"val_check_interval": 5}, "save_in_validation": True},
    "validation twice an epoch": {"trainer": {"val_check_interval": 0.5}, "save_in_validation": True},
    "validation across epochs": {
        "trainer": {"check_val_every_n_epoch": None, "val_check_interval": 4},
        "save_in_validation": True,
    },
    "validation within an accumulation": {
        "trainer": {"val_check_interval": 5, "accumulate_grad_batches": 3},
        "save_in_validation": True,
    },
    "no validation": {"trainer": {"limit_val_batches": 0}},
    "limit as a number": {"trainer": {"limit_train_batches": 7}, "save_in_validation": True},
    "limit as a fraction": {"trainer": {"limit_train_batches": 0.5}, "save_in_validation": True},
    "limit and accumulation": {"trainer": {"limit_train_batches": 7, "accumulate_grad_batches": 3}},
    "max_steps": {"trainer": {"max_steps": 30, "max_epochs": -1}, "save_in_validation": True},
    "max_steps without validation": {"trainer": {"max_steps": 30, "max_epochs": -1, "limit_val_batches": 0}},
    "max_steps and accumulation": {"trainer": {"max_steps": 12, "max_epochs": -1, "accumulate_grad_batches": 3}},
    "max_steps, limit, validation": {
        "trainer": {"max_steps": 30, "max_epochs": -1, "val_check_interval": 4, "limit_train_batches": 8},
        "save_in_validation": True,
    },
    "an endless sampler": {
        "loader": {"order": jobs.EndlessSampler()},
        "trainer": {"max_steps": 30, "max_epochs": -1, "val_check_interval": 4, "check_val_every_n_epoch": None},
        "save_in_validation": True,
    },
    "overfit_batches": {"trainer": {"overfit_batches": 3}},
    "reload every epoch": {"trainer": {"reload_dataloaders_every_n_epochs": 1}},
    "reload every other epoch": {"trainer": {"reload_dataloaders_every_n_epochs": 2}},
    "estimated_stepping_batches is read": {"reads_steps": True},
    "two datasets, cycled": {"sizes": {"a": 50, "b": 18}, "save_in_validation": True},
    "three datasets, cycled": {"sizes": {"a": 18, "b": 50, "c": 7}},
    "cycled, limit": {"sizes": {"a": 50, "b": 18}, "trainer": {"limit_train_batches": 7}},
    "two datasets, the shortest stops": {"sizes": {"a": 50, "b": 18}, "mode": "min_size", "save_in_validation": True},
    "stages, max_steps": {
        "stages": (4, 3),
        "trainer": {"max_steps": 13, "max_epochs": -1, "val_check_interval": 4},
        "save_in_validation": True,
    },
    "stages in epochs of 4 batches": {"stages": (4, 3), "trainer": {"limit_train_batches": 4, "max_epochs": 4}},
    "dropped tail": {"loader": {"drop_last": True}},
    "padded tail": {"loader": {"tail": "pad"}},
}
WORKERS: dict[str, dict[str, Any]] = {
    "2 workers": {"loader": {"num_workers": 2}},
    "2 persistent workers": {"loader": {"num_workers": 2, "persistent_workers": True}},
    "2 threads": {"data": "drawing", "loader": {"num_workers": 2, "engine": "threads"}},
    "accumulation, 2 workers": {"loader": {"num_workers": 2}, "trainer": {"accumulate_grad_batches": 3}},
}


QUICK = (
    "plain",
    "accumulation",
    "validation within the epoch",
    "max_steps",
    "two datasets, cycled",
    "stages, max_steps",
)


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_resume_from_every_checkpoint_equals_the_uninterrupted_run(case: str, tmp_path: Path) -> None:
    """In the middle of each epoch, on its last batch, at its end, in and after validation."""
    whole = {"dir": str(tmp_path), "name": "whole", "save_every": 1, **CASES[case]}
    run_in_process(whole)
    checkpoints = checkpoints_of(whole)
    assert any("step" in path.name for path in checkpoints)
    assert any("epoch" in path.name for path in checkpoints)
    left = resume_everywhere(whole, checkpoints if len(checkpoints) < 25 else every_other_step(checkpoints))
    assert len(set(left)) > 5


def every_other_step(checkpoints: list[Path]) -> list[Path]:
    """Leave out the checkpoints of odd steps. An epoch has 13 batches, so two epochs have each place in it."""
    return [path for path in checkpoints if "step=" not in path.stem or int(path.stem.split("=")[1]) % 2 == 0]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"limit_train_batches": 7}, {"reload_dataloaders_every_n_epochs": 1}])
def test_resume_from_where_a_training_or_an_epoch_begins(settings: dict[str, Any], tmp_path: Path) -> None:
    """And from the checkpoints of the runs that were resumed there: each epoch is trained once."""
    whole = {"dir": str(tmp_path), "name": "whole", "save_every": 100, "save_at_starts": True, "trainer": settings}
    run_in_process(whole)
    starts = [path for path in checkpoints_of(whole) if path.stem.startswith("start")]
    assert len(starts) == 4
    resume_everywhere(whole, starts)
    for start in ("start-epoch=0", "epoch-epoch=0"):
        first = resumed_job(whole, tmp_path / "saved-whole" / f"{start}.ckpt", f"first-{start}", save_every=5)
        run_in_process(first)
        assert len(checkpoints_of(first)) > 6
        left = resume_everywhere(whole, checkpoints_of(first), start)
        assert len(set(left)) > 3


@pytest.mark.parametrize("case", WORKERS)
def test_resume_with_workers_equals_the_uninterrupted_run(case: str, tmp_path: Path) -> None:
    whole = {"dir": str(tmp_path), "name": "whole", "save_every": 1, **WORKERS[case]}
    run_in_process(whole)
    picked = [path for path in checkpoints_of(whole) if path.stem in PICKED]
    assert len(picked) == 5
    resume_everywhere(whole, picked)


@pytest.mark.parametrize(("trainer", "steps", "begins_at"), [({}, 18, 18), ({"accumulate_grad_batches": 3}, 7, 19)])
def test_a_longer_run_goes_on_within_the_epoch_that_max_steps_ended(
    trainer: dict[str, Any], steps: int, begins_at: int, tmp_path: Path
) -> None:
    """Lightning counts that epoch as done and saves a checkpoint; the rest of it must not become the next epoch."""
    whole = {"dir": str(tmp_path), "name": "whole", "trainer": trainer}
    run_in_process(whole)
    short = {**whole, "name": "short", "save_every": 100, "trainer": {**trainer, "max_steps": steps}}
    run_in_process(short)
    resumed = {**whole, "name": "resumed", "ckpt": str(tmp_path / "saved-short" / "epoch-epoch=1.ckpt")}
    run_in_process(resumed)
    check_same_end(whole, resumed, begins_at=begins_at)


PICKED = ("epoch-epoch=0", "epoch-epoch=1", "step-step=3", "step-step=5", "step-step=15")


def test_the_number_of_workers_may_change_from_run_to_run(tmp_path: Path) -> None:
    """0, then 2, then 3 workers, resumed twice in a chain, equal a run without workers."""
    whole = {"dir": str(tmp_path), "name": "whole"}
    run_in_process(whole)
    ckpt = None
    for name, workers, at in (("first", 0, [0, 5]), ("second", 2, [1, 4]), ("third", 3, None)):
        job: dict[str, Any] = {"dir": str(tmp_path), "name": name, "save_every": 1, "ckpt": ckpt}
        job["loader"] = {"num_workers": workers}
        if at:
            job["stop"] = {"where": "in_step", "at": at, "by": "SIGKILL"}
            assert jobs.launch(job) == -9
            ckpt = str(newest(tmp_path, f"saved-{name}/step-*"))
        else:
            job.pop("save_every")
            run_in_process(job)
            check_same_end(whole, job, begins_at=13 + 4)


def test_another_global_seed_in_the_resuming_process_changes_nothing(tmp_path: Path) -> None:
    whole = {"dir": str(tmp_path), "name": "whole", "save_every": 1, "global_seed": 1}
    run_in_process(whole)
    path = tmp_path / "saved-whole" / "step-step=5.ckpt"
    resumed = {"dir": str(tmp_path), "name": "resumed", "ckpt": str(path), "global_seed": 99}
    run_in_process(resumed)
    check_same_end(whole, resumed, begins_at=5)


def test_overfit_batches_gives_the_same_samples_each_epoch(tmp_path: Path) -> None:
    job = {"dir": str(tmp_path), "name": "whole", "trainer": {"overfit_batches": 3}}
    run_in_process(job)
    ids = [step["ids"] for step in jobs.steps_of(job)]
    assert len(ids) == 9
    assert ids[:3] == ids[3:6] == ids[6:]


def test_a_checkpoint_holds_a_small_state_that_can_be_read_safely(tmp_path: Path) -> None:
    whole = {"dir": str(tmp_path), "name": "whole", "save_every": 1}
    run_in_process(whole)
    saved = torch.load(tmp_path / "saved-whole" / "step-step=5.ckpt", weights_only=True)
    state = saved["DataModule"]
    assert len(str(state)) < 1024
    assert state["train"][0]["cursor"] == {"epoch": 0, "samples": 20, "batches": 5, "plan": []}
    assert saved["loops"]["fit_loop"]["state_dict"]["combined_loader"] == list(state["train"])
