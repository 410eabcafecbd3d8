"""Under Lightning: a run in stages goes on with other batch sizes, and each sample of the schedule comes once."""

import json
import warnings
from pathlib import Path
from typing import Any

import lightning_job as jobs
import pytest
from lightning_runs import resumed_job, run_here

import loaderkit as lk


def ids_of(job: dict[str, Any]) -> list[list[int]]:
    lines = Path(job["dir"], f"steps-{job['name']}-0.jsonl").read_text().splitlines()
    return [json.loads(line)["ids"][0] for line in lines]


@pytest.mark.parametrize("trainer", [{"max_epochs": 1}, {"max_epochs": 5, "limit_train_batches": 5}])
@pytest.mark.parametrize("sizes", [(3, 4), (8, 8)])
def test_other_batch_sizes_from_a_checkpoint_on(
    sizes: tuple[int, int], trainer: dict[str, Any], tmp_path: Path
) -> None:
    """The largest step may be the same; then the batches so far are another number all the same."""
    whole = {"dir": str(tmp_path), "name": "whole", "save_every": 1, "stages": (4, 3), "trainer": trainer}
    run_here(whole)
    assert len(ids_of(whole)) == 8 + 7
    order = [index for batch in ids_of(whole) for index in batch]
    resumes = 0
    for stop in (3, 7, 12):
        ckpt = tmp_path / "saved-whole" / f"step-step={stop}.ckpt"
        resumed = resumed_job(whole, ckpt, f"resumed-{stop}", stages=sizes)
        run_here(resumed)
        found = [index for batch in ids_of(whole)[:stop] + ids_of(resumed) for index in batch]
        assert found == order[: len(found)]
        # The Trainer ends after its number of epochs, which may hold fewer samples in smaller batches.
        assert len(found) == len(order) or "limit_train_batches" in trainer
        resumes += 1
    assert resumes == 3


@pytest.mark.parametrize("limit", [{}, {"limit_train_batches": 4}])
def test_a_training_ends_with_its_stages_and_goes_on_when_one_is_added(limit: dict[str, Any], tmp_path: Path) -> None:
    """Also without a limit of epochs, and from a checkpoint that is saved after the fit."""
    job = {"dir": str(tmp_path), "name": "whole", "stages": (4, 3), "trainer": {"max_epochs": -1, **limit}}
    trainer, model = jobs.make_trainer(job), jobs.Model(job)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, datamodule=jobs.make_data(job))
    assert "the 2 stages, 50 samples, are over" in "".join(str(warning.message) for warning in caught)
    assert (len(ids_of(job)), trainer.global_step) == (15, 15)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    longer = {**job, "name": "longer", "stages": (4, 3, 5), "ckpt": str(tmp_path / "end.ckpt")}
    run_here(longer)
    found = [index for batch in ids_of(job) + ids_of(longer) for index in batch]
    again = {**longer, "name": "again", "ckpt": None}
    run_here(again)
    assert found == [index for batch in ids_of(again) for index in batch]
    assert len(found) == 70


def test_a_loader_without_a_datamodule_does_not_begin_empty_epochs(tmp_path: Path) -> None:
    job = {"dir": str(tmp_path), "name": "direct", "trainer": {"max_epochs": -1}}
    plan = jobs.make_stages(4, 3)
    with (
        pytest.raises(RuntimeError, match=r"the 2 stages, 50 samples, are over.* max_epochs=1"),
        warnings.catch_warnings(action="ignore"),
    ):
        jobs.make_trainer(job).fit(jobs.Model(job), lk.Loader(plan.dataset, plan=plan))
    assert len(ids_of(job)) == 15
