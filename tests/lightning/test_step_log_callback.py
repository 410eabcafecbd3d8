"""The log of a Lightning training's steps: numbered as its loggers do, and whole after a resume."""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from datamodule_runs import Recorder
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning_runs import quiet_trainer

import loaderkit as lk

SIZE, BATCH = 30, 4


def rows() -> lk.ArrayDataset:
    return lk.ArrayDataset(torch.arange(SIZE, dtype=torch.float32).reshape(SIZE, 1))


def train(folder: Path, model: Recorder, data: Any, *, epochs: int = 2, ckpt: Path | None = None, **more: Any) -> None:
    callbacks = [lk.StepLogCallback(folder / "steps.log"), ModelCheckpoint(folder, "{step}", save_top_k=-1, **SAVING)]
    settings = {"max_epochs": epochs, "enable_checkpointing": True, "callbacks": callbacks, **more}
    with warnings.catch_warnings(action="ignore"):
        trainer = quiet_trainer(folder, **settings)
        if isinstance(data, pl.LightningDataModule):
            trainer.fit(model, datamodule=data, ckpt_path=ckpt)
        else:
            trainer.fit(model, data, ckpt_path=ckpt)


SAVING: dict[str, Any] = {"every_n_train_steps": 1}


def module(train: Any = None, **settings: Any) -> lk.DataModule:
    settings = {"batch_size": BATCH, "seed": 2, **settings}
    return lk.DataModule(train=train or rows(), loader=lk.LoaderConfig(**settings))


def located(folder: Path) -> list[list[list[int]]]:
    log, loader = lk.StepLog(folder / "steps.log"), lk.Loader(rows(), BATCH, shuffle=True, seed=2)
    return [[each.indices.tolist() for each in log.locate(loader, step)] for step in log.steps()]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("kind", ["datamodule", "loader"])
def test_a_step_is_an_optimizer_step_with_all_its_batches(kind: str, accumulate: int, tmp_path: Path) -> None:
    model = Recorder(lambda batch: batch, 1)
    data = module() if kind == "datamodule" else lk.Loader(rows(), BATCH, shuffle=True, seed=2)
    train(tmp_path, model, data, accumulate_grad_batches=accumulate)
    found = located(tmp_path)
    assert [list(map(float, batch)) for step in found for batch in step] == model.seen
    assert len(model.seen) == 16
    epoch = [1] * 8 if accumulate == 1 else [3, 3, 2]  # Lightning steps at the end of an epoch too
    assert [len(step) for step in found] == 2 * epoch


def test_the_loggers_show_the_same_numbers(tmp_path: Path) -> None:
    class Logging(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.log("first", batch[0, 0])
            return super().training_step(batch, batch_idx)

    logger = CSVLogger(tmp_path, name="", version="")
    train(tmp_path, Logging(lambda batch: batch, 1), module(), logger=logger, log_every_n_steps=3)
    shown = [line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()]
    names, found = shown[0], located(tmp_path)
    logged = [(int(line[names.index("step")]), float(line[names.index("first")])) for line in shown[1:]]
    assert len(logged) == 5
    for step, value in logged:
        assert found[step][0][0] == value


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_resumed_training_continues_the_log(accumulate: int, tmp_path: Path) -> None:
    whole = Recorder(lambda batch: batch, 1)
    train(tmp_path, whole, module(), accumulate_grad_batches=accumulate)
    before = located(tmp_path)
    [ckpt] = tmp_path.glob("step=4.ckpt")
    train(tmp_path, Recorder(lambda batch: batch, 1), module(), ckpt=ckpt, accumulate_grad_batches=accumulate, epochs=3)
    after = located(tmp_path)
    assert after[: len(before)] == before
    assert len(after) == len(before) // 2 * 3


def test_a_stream_that_the_trainer_fetches_ahead_is_logged_as_trained(tmp_path: Path) -> None:
    stream = lk.StreamDataset(["a", "b"], lambda shard, start: torch.ones(10 - start, 1).unbind(), lanes=2)
    train(tmp_path, Recorder(lambda batch: batch, 1), module(stream, seed=0))
    log = lk.StepLog(tmp_path / "steps.log")
    found = [(one.epoch, one.batches) for step in log.steps() for one in log.find(step)]
    assert found == [(epoch, batch) for epoch in range(2) for batch in range(6)]
    bare = lk.Loader(stream, BATCH)
    with pytest.raises(ValueError, match="the Loader has no length, so Lightning fetches one batch ahead"):
        train(tmp_path, Recorder(lambda batch: batch, 1), bare)


def test_several_training_datasets_are_refused(tmp_path: Path) -> None:
    data = module({"a": rows(), "b": rows()})
    with pytest.raises(ValueError, match=r"the training loader is of type dict, wanted one lk.Loader"):
        train(tmp_path, Recorder(lambda batch: batch["a"], 1), data)
