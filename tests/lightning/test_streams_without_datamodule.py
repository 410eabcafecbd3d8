"""Streams handed straight to a Trainer: what is exact, and what is refused."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_runs import quiet_trainer
from stream_data import make_loader

import loaderkit as lk

SIZES = [9, 0, 14, 3, 1, 8]


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, list[int], float]] = []
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append((self.current_epoch, batch[0].tolist(), batch[1].sum().item()))
        return self.weight * 1.0

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(
    loader: lk.Loader, folder: Path, *, resume: str | None = None, limit: int | None = None, **checkpoint: Any
) -> list[Any]:
    model = Model()
    saving = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, **checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own
        settings: dict[str, Any] = {"limit_train_batches": limit, "enable_checkpointing": True, "callbacks": [saving]}
        trainer = quiet_trainer(folder, max_epochs=3, **settings)
        trainer.fit(model, loader, ckpt_path=resume, weights_only=True)
    return model.seen


def test_a_stream_handed_to_fit_resumes_exactly_between_its_batches(tmp_path: Path) -> None:
    every = {"every_n_train_steps": 1, "save_on_train_epoch_end": False}
    whole = fit(make_loader(SIZES, steps=4), tmp_path / "whole", **every)
    for step in (1, 3, 4, 6):
        checkpoint = tmp_path / "whole" / f"step={step}.ckpt"
        assert fit(make_loader(SIZES, steps=4), tmp_path / f"{step}", resume=str(checkpoint), **every) == whole[step:]


@pytest.mark.parametrize("steps", [None, 4])
def test_epochs_of_fewer_batches_follow_each_other_as_in_a_loop(tmp_path: Path, steps: int | None) -> None:
    limited = fit(make_loader(SIZES, steps=steps), tmp_path, limit=2)
    loader = make_loader(SIZES, steps=steps)
    wanted = [(epoch, batch[0].tolist()) for epoch in range(3) for batch in itertools.islice(loader, 2)]
    assert [seen[:2] for seen in limited] == wanted
    assert len(wanted) == 6


ENDS = {"every_n_epochs": 1, "save_on_train_epoch_end": True}


@pytest.mark.parametrize("steps", [None, 4])
def test_an_epochs_end_without_a_datamodule_is_refused(tmp_path: Path, steps: int | None) -> None:
    """Lightning restores no loader there: the run would train on its first epoch's data again."""
    fit(make_loader(SIZES, steps=steps), tmp_path / "whole", **ENDS)
    checkpoint = min((tmp_path / "whole").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    with pytest.raises(RuntimeError, match=r"it starts epoch 1, the stream is in epoch 0.*in a loaderkit.DataModule"):
        fit(make_loader(SIZES, steps=steps), tmp_path / "end", resume=str(checkpoint), **ENDS)


def test_a_trainer_is_told_what_its_checkpoints_count() -> None:
    loader = make_loader(SIZES)
    loader.batch_sampler.sampler.set_epoch(2)
    assert loader.cursor.epoch == 2
    loader.batch_sampler.sampler.set_epoch(1)
    assert loader.cursor.epoch == 2
    with pytest.warns(
        UserWarning, match=r"counts batches that were not learnt.*Without a length.*Use loaderkit.DataModule"
    ):
        loader.state_dict()
    assert isinstance(loader, lk.Loader)
