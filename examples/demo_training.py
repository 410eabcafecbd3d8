"""The demo's training: one run in its own process, which kills itself if told to."""

import json
import multiprocessing
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import loaderkit as lk

TRAIN = 1500  # the other 297 digits are for the test
BATCH = 32
EPOCHS = 3
SAVE_EVERY = 10  # steps


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training, from its start or from a checkpoint, to its end or to its kill."""

    name: str
    kind: Literal["loaderkit", "DataLoader"]
    folder: Path
    workers: int
    kill_at: tuple[int, int] | None = None  # epoch, batch
    resume_from: Path | None = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.kind}-{self.name}.log"

    @property
    def steps(self) -> Path:
        """Write one JSON line a step with the samples it was trained on; a kill does not remove it."""
        return self.folder / f"{self.kind}-{self.name}.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / f"{self.kind}-{self.name}"

    @property
    def weights(self) -> Path:
        return self.folder / f"{self.kind}-{self.name}.pt"


class Digits(Dataset[dict[str, Any]]):
    """Scikit-learn's 8 x 8 digits, turned and shifted at random."""

    def __init__(self, start: int, stop: int, *, augment: bool) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.images[start:stop], dtype=torch.float32)[:, None] / 16
        self.labels = torch.tensor(digits.target[start:stop])
        self.augment = v2.RandomAffine(degrees=10, translate=(0.1, 0.1)) if augment else v2.Identity()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "image": self.augment(self.images[index]), "label": self.labels[index]}


class Classifier(pl.LightningModule):
    """Two layers and dropout."""

    def __init__(self, run: Run | None = None) -> None:
        super().__init__()
        self.run = run
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        if self.run is not None and self.run.kill_at == (self.current_epoch, batch_idx):
            os.kill(os.getpid(), signal.SIGKILL)  # no handler can catch this: the process is gone
        return nn.functional.cross_entropy(self(batch["image"]), batch["label"])

    def on_train_batch_end(self, outputs: Any, batch: dict[str, Tensor], batch_idx: int) -> None:
        if self.run is not None:
            line = {"epoch": self.current_epoch, "batch": batch_idx, "ids": batch["id"].tolist()}
            with self.run.steps.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(run: Run) -> None:
    """Train as the run says, and save the final weights."""
    _print_to(run.log)
    multiprocessing.set_start_method(None, force=True)  # workers start as in any training, not by the demo's server
    torch.set_num_threads(1)
    pl.seed_everything(0, workers=True)
    callbacks: list[pl.Callback] = [
        ModelCheckpoint(run.checkpoints, "{step}", every_n_train_steps=SAVE_EVERY, save_top_k=-1)
    ]
    if run.kind == "loaderkit":
        callbacks.append(lk.SeedSteps())  # for the dropout
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=run.folder,
    )
    model = Classifier(run)
    digits = Digits(0, TRAIN, augment=True)
    if run.kind == "loaderkit":
        data = lk.DataModule(digits, loader=lk.LoaderConfig(batch_size=BATCH, num_workers=run.workers))
        trainer.fit(model, datamodule=data, ckpt_path=run.resume_from)
    else:
        loader = DataLoader(digits, batch_size=BATCH, shuffle=True, num_workers=run.workers)
        trainer.fit(model, loader, ckpt_path=run.resume_from)
    torch.save(model.state_dict(), run.weights)


def _print_to(path: Path) -> None:
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
