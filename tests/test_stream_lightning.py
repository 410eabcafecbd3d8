"""Streams under a Trainer: handed to fit, or by a LightningDataModule that keeps their state."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from test_stream import make_loader

import loaderkit as lk

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.rank_zero.LightningDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*a Loader of a stream that was"),
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__`"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]
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


class Data(pl.LightningDataModule):
    """Keeps the state of its stream, at epochs' ends too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings, self.saved = settings, None

    def train_dataloader(self) -> Any:
        self.loader = make_loader(SIZES, **self.settings)
        if self.saved is not None:
            self.loader.load_state_dict(self.saved)
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        return {"stream": self.loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.saved = state_dict["stream"]


def fit(data: Any, folder: Path, *, resume: str | None = None, **checkpoint: Any) -> list[Any]:
    model = Model()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, **checkpoint)],
    )
    given = {"datamodule": data} if isinstance(data, pl.LightningDataModule) else {"train_dataloaders": data}
    trainer.fit(model, **given, ckpt_path=resume, weights_only=True)
    return model.seen


@pytest.mark.parametrize("workers", [0, 2])
def test_a_datamodule_with_a_streams_state_resumes_exactly_after_each_step(tmp_path: Path, workers: int) -> None:
    """Epochs of steps, at their ends too."""
    every = {"every_n_train_steps": 1, "save_on_train_epoch_end": False}
    whole = fit(Data(steps=4, num_workers=workers), tmp_path / "whole", **every)
    assert [epoch for epoch, *_ in whole] == [0] * 4 + [1] * 4 + [2] * 4
    for step in (1, 3, 4, 6, 8, 11) if workers == 0 else (2, 4):
        checkpoint = tmp_path / "whole" / f"step={step}.ckpt"
        assert fit(Data(steps=4), tmp_path / f"{step}", resume=str(checkpoint), **every) == whole[step:]


def test_a_stream_handed_to_fit_resumes_exactly_between_its_batches(tmp_path: Path) -> None:
    every = {"every_n_train_steps": 1, "save_on_train_epoch_end": False}
    whole = fit(make_loader(SIZES, steps=4), tmp_path / "whole", **every)
    for step in (1, 3, 4, 6):
        checkpoint = tmp_path / "whole" / f"step={step}.ckpt"
        assert fit(make_loader(SIZES, steps=4), tmp_path / f"{step}", resume=str(checkpoint), **every) == whole[step:]


ENDS = {"every_n_epochs": 1, "save_on_train_epoch_end": True}


def test_a_stream_without_a_length_resumes_exactly_at_an_epochs_end(tmp_path: Path) -> None:
    whole = fit(Data(), tmp_path / "whole", **ENDS)
    wanted = [batch for epoch in list_epochs(3) for batch in epoch]
    assert [(epoch, batch) for epoch, batch, _ in whole] == wanted
    checkpoints = sorted((tmp_path / "whole").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(checkpoints) == 3
    for epoch, checkpoint in enumerate(checkpoints[:2], start=1):
        rest = fit(Data(), tmp_path / f"{epoch}", resume=str(checkpoint), **ENDS)
        assert rest == [each for each in whole if each[0] >= epoch]
        assert rest


@pytest.mark.parametrize("steps", [None, 4])
def test_an_epochs_end_without_a_datamodule_is_refused(tmp_path: Path, steps: int | None) -> None:
    """Lightning restores no loader there: the run would train on its first epoch's data again."""
    fit(make_loader(SIZES, steps=steps), tmp_path / "whole", **ENDS)
    checkpoint = min((tmp_path / "whole").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    with pytest.raises(
        RuntimeError, match=r"it begins epoch 1, the stream stands in epoch 0.*in a loaderkit.DataModule"
    ):
        fit(make_loader(SIZES, steps=steps), tmp_path / "end", resume=str(checkpoint), **ENDS)


def list_epochs(count: int) -> list[list[tuple[int, list[int]]]]:
    loader = make_loader(SIZES)
    return [[(epoch, batch[0].tolist()) for batch in loader] for epoch in range(count)]


def test_a_trainer_is_told_what_its_checkpoints_count() -> None:
    loader = make_loader(SIZES)
    loader.batch_sampler.sampler.set_epoch(2)
    assert loader.cursor.epoch == 2
    loader.batch_sampler.sampler.set_epoch(1)
    assert loader.cursor.epoch == 2
    with pytest.warns(
        UserWarning, match=r"counts batches that were not learnt, and without a length .*Use loaderkit.DataModule"
    ):
        loader.state_dict()
    assert isinstance(loader, lk.Loader)
