"""Under Lightning: evaluation and prediction over ranks, the batch-size finder, loaders without a DataModule."""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import lightning_job as jobs
import pytest
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.tuner import Tuner
from lightning_runs import (
    RecordingModel,
    check_same_end,
    checkpoints_of,
    quiet_trainer,
    recorded_ids,
    resume_everywhere,
    resumed_job,
    run_here,
    run_in_process,
)

import loaderkit as lk


class Writer(BasePredictionWriter):
    """Compares the indices that Lightning knows with what was predicted."""

    def __init__(self) -> None:
        super().__init__("batch_and_epoch")

    def write_on_batch_end(self, trainer: Any, pl_module: Any, prediction: Any, batch_indices: Any, *_: Any) -> None:
        assert batch_indices == prediction.tolist()

    def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
        assert batch_indices == [[part.tolist() for part in predictions]]


def evaluate(job: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    trainer = quiet_trainer(job["dir"], devices=job["ranks"], strategy="ddp_fork", callbacks=[Writer()])
    data = lk.DataModule(**{job["stage"]: jobs.Samples(job["size"])}, loader=lk.LoaderConfig(batch_size=4))
    if job["stage"] == "val":
        trainer.validate(RecordingModel(job["dir"]), datamodule=data, verbose=False)
    else:
        trainer.predict(RecordingModel(job["dir"]), datamodule=data, return_predictions=False)


@pytest.mark.slow
@pytest.mark.parametrize("size", [13, 32])
def test_evaluation_gives_each_sample_once_and_one_metric(size: int, tmp_path: Path) -> None:
    """On 1 to 4 ranks, whatever is left over."""
    metrics = []
    for ranks in (1, 2, 3, 4):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        job = {"dir": str(folder), "name": "eval", "ranks": ranks, "size": size, "stage": "val"}
        assert jobs.launch(job, evaluate) == 0, jobs.log_of(job)
        parts = [recorded_ids(folder, rank) for rank in range(ranks)]
        assert len({len(part) for part in parts}) == 1
        assert sorted(i for part in parts for batch in part for i in batch) == list(range(size))
        metrics.append(float((folder / "metric.txt").read_text()))
    assert metrics == pytest.approx([metrics[0]] * 4, rel=1e-6)


def test_predictions_know_their_indices_on_two_ranks(tmp_path: Path) -> None:
    job = {"dir": str(tmp_path), "name": "predict", "ranks": 2, "size": 29, "stage": "predict"}
    assert jobs.launch(job, evaluate) == 0, jobs.log_of(job)
    parts = [recorded_ids(tmp_path, rank) for rank in (0, 1)]
    assert sorted(i for part in parts for batch in part for i in batch) == list(range(29))
    loader = lk.Loader(jobs.Samples(29), 4, world=lk.World(1, 2))
    assert [loader.indices(0, batch).tolist() for batch in range(len(loader))] == parts[1]


def find_batch_size(job: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    model, data = jobs.Model(job), jobs.make_data(job)
    trainer = jobs.make_trainer(job)
    assert Tuner(trainer).scale_batch_size(model, datamodule=data, max_trials=2, steps_per_trial=2, init_val=4) == 8
    assert data.batch_size == 8
    Path(job["dir"], f"steps-{job['name']}-0.jsonl").unlink()
    trainer.fit(model, datamodule=data)


def test_training_after_the_batch_size_finder_begins_at_the_start(tmp_path: Path) -> None:
    found = {"dir": str(tmp_path), "name": "found"}
    assert jobs.launch(found, find_batch_size) == 0, jobs.log_of(found)
    plain = {"dir": str(tmp_path), "name": "plain", "loader": {"batch_size": 8}}
    run_in_process(plain)
    steps = jobs.steps_of(plain)
    assert len(steps) == 21
    assert [step["ids"] for step in jobs.steps_of(found)] == [step["ids"] for step in steps]


@pytest.mark.parametrize("case", [{}, {"trainer": {"limit_train_batches": 7}}, {"loader": {"num_workers": 2}}])
def test_a_loader_given_to_fit_resumes_after_a_kill(case: dict[str, Any], tmp_path: Path) -> None:
    """From each place where a ModelCheckpoint saves, the epoch's end included."""
    whole: dict[str, Any] = {"dir": str(tmp_path), "name": "whole", "save_every": 1, "direct": True, **case}
    run_in_process(whole)
    names = ("step-step=1", "step-step=5", "step-step=7", "step-step=13", "step-step=14", "epoch-epoch=0")
    picked = [path for path in checkpoints_of(whole) if path.stem in names]
    assert len(picked) == 6
    resume_everywhere(whole, picked)


@pytest.mark.parametrize(("loader", "limit"), [({}, 1.0), ({}, 7), ({"steps": 13}, 1.0)])
def test_a_loader_given_to_fit_loses_no_epoch_under_max_steps(
    loader: dict[str, Any], limit: float, tmp_path: Path
) -> None:
    """Lightning ends the checkpoint's epoch a second time."""
    trainer = {"max_steps": 30, "max_epochs": -1, "limit_train_batches": limit}
    whole: dict[str, Any] = {"dir": str(tmp_path), "name": "whole", "save_every": 40, "direct": True}
    whole |= {"trainer": trainer, "loader": loader}
    if loader:
        whole["shards"] = [9, 0, 14, 3, 1, 8, 15]
    run_here(whole)
    steps = [(step["epoch"], step["batch"], step["ids"]) for step in jobs.steps_of(whole)]
    for epoch in (0, 1):
        resumed = resumed_job(whole, tmp_path / "saved-whole" / f"epoch-epoch={epoch}.ckpt", f"resumed-{epoch}")
        run_here(resumed)
        found = [(step["epoch"], step["batch"], step["ids"]) for step in jobs.steps_of(resumed)]
        assert found == steps[(epoch + 1) * (13 if limit == 1.0 else 7) :]


def test_a_loader_given_to_fit_refuses_another_batch_size(tmp_path: Path) -> None:
    """Lightning's counts of batches would be wrong, and samples lost."""
    whole: dict[str, Any] = {"dir": str(tmp_path), "name": "whole", "save_every": 1, "direct": True}
    run_in_process(whole)
    for number, step in enumerate((5, 13)):
        other = {"dir": str(tmp_path), "name": f"other-{number}", "direct": True, "loader": {"batch_size": 8}}
        other["ckpt"] = str(tmp_path / "saved-whole" / f"step-step={step}.ckpt")
        assert jobs.launch(other) == 1
        assert "cannot resume under this Trainer" in jobs.log_of(other)


def test_a_loader_given_to_fit_says_when_it_is_not_exact(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, max_epochs=1, limit_val_batches=0)
    model = jobs.Model({"dir": str(tmp_path), "name": "direct"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, lk.Loader(jobs.Samples(12), 4))
    with pytest.warns(UserWarning, match="got directly.*Use loaderkit.DataModule"):
        trainer.save_checkpoint(tmp_path / "saved.ckpt")


def test_a_checkpoint_without_a_data_module_resumes_with_one(tmp_path: Path) -> None:
    whole: dict[str, Any] = {"dir": str(tmp_path), "name": "whole", "save_every": 1, "direct": True}
    run_in_process(whole)
    ckpt = str(tmp_path / "saved-whole" / "step-step=5.ckpt")
    resumed = {"dir": str(tmp_path), "name": "resumed", "ckpt": ckpt}
    run_in_process(resumed)
    check_same_end(whole, resumed, begins_at=5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 51}, "cannot resume: the state is for dataset '50 samples', this loader has '51 samples'"),
        ({"loader": {"seed": 6}}, "cannot resume: the state is for seed 5, this loader has 6"),
        ({"loader": {"shuffle": False}}, "cannot resume: the state is for order"),
        ({"sizes": {"a": 50, "b": 18}}, "found 1 training datasets in the checkpoint, wanted 2"),
    ],
)
def test_a_checkpoint_of_other_data_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    whole = {"dir": str(tmp_path), "name": "whole", "save_every": 5}
    run_in_process(whole)
    other = {"dir": str(tmp_path), "name": "other", "ckpt": str(tmp_path / "saved-whole" / "step-step=5.ckpt")}
    assert jobs.launch({**other, **change}) == 1
    assert message in jobs.log_of(other)


def test_datasets_read_side_by_side_need_their_world_and_batch_size(tmp_path: Path) -> None:
    whole = {"dir": str(tmp_path), "name": "whole", "save_every": 5, "sizes": {"a": 50, "b": 18}}
    run_in_process(whole)
    other = {**whole, "name": "other", "ckpt": str(tmp_path / "saved-whole" / "step-step=5.ckpt")}
    other["loader"] = {"batch_size": 8}
    assert jobs.launch(other) == 1
    assert "the number of ranks or the batch size has changed" in jobs.log_of(other)


def test_asking_for_data_that_was_not_given_is_an_error(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    with pytest.raises(ValueError, match=r"needs val data, and there is none. Pass DataModule\(val=...\)"):
        trainer.validate(RecordingModel(str(tmp_path)), datamodule=lk.DataModule(jobs.Samples()), verbose=False)


class Overriding(lk.DataModule):
    def val_dataloader(self) -> Any:
        return super().val_dataloader()


@pytest.mark.parametrize("kind", [lk.DataModule, Overriding])
@pytest.mark.parametrize("validates", [True, False])
def test_a_training_without_validation_data_is_as_with_any_datamodule(
    kind: type[lk.DataModule], validates: bool, tmp_path: Path
) -> None:
    """Lightning warns about a validation step without data, but not about a missing step if there is no data."""
    job = {"dir": str(tmp_path), "name": "whole"}
    model = jobs.Model(job)
    if not validates:
        model.validation_step = pl.LightningModule.validation_step.__get__(model)
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, datamodule=kind(jobs.Samples(8), loader=lk.LoaderConfig(batch_size=4)))
    assert trainer.global_step == 2
    assert "val" not in trainer.callback_metrics
    said = [str(warning.message) for warning in caught if "val" in str(warning.message)]
    if kind is lk.DataModule:
        assert ["validation_step` but have no `val_dataloader" in text for text in said] == [True] * validates


def test_validation_is_the_same_each_time() -> None:
    data = lk.DataModule(val=[jobs.Samples(9), lambda: jobs.Samples(5)], loader=lk.LoaderConfig(batch_size=2))
    data.setup("validate")
    first, second = data.val_dataloader()
    passes = [[batch["x"] for batch in first] for _ in range(2)]
    assert len(passes[0]) == 5
    assert all(torch.equal(a, b) for a, b in zip(*passes, strict=True))
    assert [len(batch["id"]) for batch in second] == [2, 2, 1]


AGAIN: dict[str, dict[str, Any]] = {
    "an index": {},
    "a stream, by steps": {"shards": [9, 0, 7, 3, 1], "loader": {"steps": 5}},
    "two, cycled": {"sizes": {"a": 18, "b": 50}},
    "two, of which one knows its place": {"data": "stateful", "size": 21, "sizes": {"a": 50}},
}


@pytest.mark.parametrize("case", AGAIN)
def test_fits_of_one_trainer_have_the_data_of_one_fit(case: str, tmp_path: Path) -> None:
    """Each fit continues after the epoch that the last one ended."""
    whole = {"dir": str(tmp_path), "name": "whole", **AGAIN[case]}
    run_here(whole)
    job = {**whole, "name": "twice"}
    model, data = jobs.Model(job), jobs.make_data(job)
    trainer = quiet_trainer(tmp_path, max_epochs=0, limit_val_batches=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epochs in (1, 3):
            trainer.fit_loop.max_epochs = epochs
            trainer.fit(model, datamodule=data)
    steps = jobs.steps_of(job)
    assert len(steps) >= 15
    assert [step["ids"] for step in steps] == [step["ids"] for step in jobs.steps_of(whole)]


def test_a_fit_that_was_interrupted_leaves_nothing_behind_in_its_data(tmp_path: Path) -> None:
    """One DataModule with a stateful dataset resumes, and then starts again under another Trainer."""
    whole = {"dir": str(tmp_path), "name": "whole", "data": "stateful", "size": 21}
    run_here(whole)
    data = jobs.make_data(whole)
    job = {**whole, "name": "stopped", "stop": {"where": "in_step", "at": [1, 3], "by": "exception"}}
    resumed, anew = ({**whole, "name": name} for name in ("resumed", "anew"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="stopped by the test"):
            jobs.make_trainer(job).fit(jobs.Model(job), datamodule=data)
        jobs.make_trainer(resumed).fit(jobs.Model(resumed), datamodule=data, ckpt_path=tmp_path / "stopped.ckpt")
        jobs.make_trainer(anew).fit(jobs.Model(anew), datamodule=data)
    ids = [step["ids"] for step in jobs.steps_of(whole)]
    assert len(ids) == 18
    assert [step["ids"] for step in jobs.steps_of(resumed)] == ids[9:]
    assert [step["ids"] for step in jobs.steps_of(anew)] == ids
