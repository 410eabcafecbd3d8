"""Threads make batches under a Trainer, and a training resumes with them in the middle of an epoch."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

import loaderkit as lk


class Draws:
    draws_only_sample_rng = True

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, torch.from_numpy(lk.sample_rng().random(3))


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen: list[tuple[int, list[float]]] = []

    def training_step(self, batch: Any, _: int) -> Tensor:
        self.seen += zip(batch[0].tolist(), batch[1].tolist(), strict=True)
        loss: Tensor = self.layer(batch[1].float()).mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, steps: int, checkpoint: Path | None = None) -> list[tuple[int, list[float]]]:
    data = lk.DataModule(Draws(), loader=lk.LoaderConfig(batch_size=4, num_workers=2, engine="threads"))
    model = Model()
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    trainer.fit(model, data, ckpt_path=checkpoint)
    trainer.save_checkpoint(folder / "last.ckpt")
    return model.seen


@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # Lightning's own
def test_a_training_with_threads_resumes_exactly(tmp_path: Path) -> None:
    whole = fit(tmp_path, 12)
    first = fit(tmp_path, 4)
    rest = fit(tmp_path, 12, tmp_path / "last.ckpt")
    assert first + rest == whole
    assert sorted(index for index, _ in whole[:24]) == list(range(24))
