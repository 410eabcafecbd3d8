"""Under Lightning: a resumed run ends the batch and the epoch that were open when its checkpoint was saved."""

from pathlib import Path
from typing import Any

import lightning_job as jobs
import pytest
import torch
from lightning_runs import checkpoints_of, resume_everywhere, run_in_process

VAL, LOSS = {"monitor": "val"}, {"monitor": "loss"}
CASES: dict[str, dict[str, Any]] = {
    "no scheduler": {},
    "each epoch, after validation": {"plateau": VAL},
    "each epoch, after training": {"plateau": LOSS, "trainer": {"limit_val_batches": 0}},
    "each step": {"plateau": {**LOSS, "interval": "step"}, "trainer": {"val_check_interval": 2}},
    "each second epoch": {"plateau": {**VAL, "frequency": 2}, "trainer": {"max_epochs": 4}},
    "validation each second epoch": {
        "plateau": {**VAL, "strict": False},
        "trainer": {"check_val_every_n_epoch": 2, "max_epochs": 4},
    },
    "validation within the epoch": {"plateau": VAL, "trainer": {"val_check_interval": 2}},
    "validation across epochs": {
        "plateau": {**VAL, "strict": False},
        "trainer": {"check_val_every_n_epoch": None, "val_check_interval": 3},
    },
    "accumulation": {"plateau": VAL, "trainer": {"accumulate_grad_batches": 2, "val_check_interval": 2}},
    "max_steps": {"plateau": VAL, "trainer": {"max_steps": 13, "max_epochs": -1}},
    "max_steps, each step": {
        "plateau": {**LOSS, "interval": "step"},
        "trainer": {"max_steps": 13, "max_epochs": -1, "val_check_interval": 2},
    },
    "limit": {"plateau": VAL, "trainer": {"limit_train_batches": 3}},
    "reload": {"plateau": VAL, "trainer": {"reload_dataloaders_every_n_epochs": 1}},
    "two datasets": {"plateau": VAL, "sizes": {"a": 18, "b": 9}},
    "a stream without a length": {"plateau": VAL, "shards": [9, 0, 8, 3], "loader": {"stop": "shortest"}},
    "a stream with a length": {"plateau": VAL, "shards": [9, 0, 8, 3], "loader": {"steps": 4}},
    "stages": {"plateau": VAL, "stages": (4, 3), "trainer": {"limit_train_batches": 4}},
    "epochs of different lengths": {"plateau": VAL, "size": 40, "budget": 16},
    "epochs of different lengths, validated twice": {
        "plateau": VAL,
        "size": 40,
        "budget": 16,
        "trainer": {"val_check_interval": 0.5},
    },
}
QUICK = ("each epoch, after validation", "each step")


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_validations_schedulers_and_epoch_ends_are_those_of_the_uninterrupted_run(case: str, tmp_path: Path) -> None:
    """From every checkpoint: none is left out or comes twice, and each sees the same metric and learning rate."""
    whole = {"dir": str(tmp_path), "name": "whole", "size": 18, "save_every": 1, "save_in_validation": True}
    whole |= CASES[case]
    run_in_process(whole)
    expected, checkpoints = jobs.ends_of(whole), checkpoints_of(whole)
    assert len(expected) >= 5
    assert "plateau" not in whole or len({end["rate"] for end in expected}) > 1  # else the law is vacuous
    resume_everywhere(whole, checkpoints)
    saved = [torch.load(path, weights_only=True) for path in checkpoints]
    done = [state["noted"] for state in saved]
    assert len(set(done)) >= 4
    # Lightning begins no training that has all its steps or epochs.
    most = {"max_epochs": jobs.EPOCHS, **whole.get("trainer", {})}
    over = [
        path
        for path, state in zip(checkpoints, saved, strict=True)
        if state["global_step"] == most.get("max_steps")
        or (state["loaderkit"]["pending"] == "schedulers" and state["epoch"] + 1 == most["max_epochs"])
    ]
    assert len(over) < 3
    for number, (path, noted) in enumerate(zip(checkpoints, done, strict=True)):
        found = jobs.ends_of({**whole, "name": f"resumed-{number}"})
        left = expected[noted:]
        if path in over:
            left = []
        assert found == left, path.name


@pytest.mark.slow
@pytest.mark.parametrize("plateau", [VAL, {**LOSS, "interval": "step"}])
def test_a_longer_run_begins_with_what_the_shorter_one_left(plateau: dict[str, Any], tmp_path: Path) -> None:
    """From the checkpoints of its last epoch's end, its last validation and its last batch."""
    whole = {"dir": str(tmp_path), "name": "whole", "size": 18, "plateau": plateau}
    run_in_process(whole)
    short = {**whole, "name": "short", "save_every": 1, "save_in_validation": True, "trainer": {"max_epochs": 2}}
    run_in_process(short)
    expected, last = jobs.ends_of(whole), checkpoints_of(short)
    last = [path for path in last if path.stem in ("epoch-epoch=1", "val-step=10", "step-step=10")]
    assert len(last) == 3
    assert resume_everywhere(whole, last) == [5, 5, 5]
    for number, path in enumerate(last):
        found = jobs.ends_of({**whole, "name": f"resumed-{number}"})
        assert found == expected[torch.load(path, weights_only=True)["noted"] :]
