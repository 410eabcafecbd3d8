"""Image classification under Lightning, with torchvision's transforms, that resumes in the middle of an epoch.

    python examples/image_classification_lightning.py
    python examples/image_classification_lightning.py --resume last

The first command trains on scikit-learn's handwritten digits and saves a checkpoint every
20 steps. Stop it wherever you like (Ctrl-C, kill -9) and start the second: it continues after the
last checkpoint, with the samples and augmentations that come next. `--workers`,
`--batch-size` and `--devices` may change in between. `--stop-after 30` stops it for you.
"""

import argparse
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.transforms import v2

import loaderkit as lk

TRAIN = 1500

augment = v2.Compose([v2.ToImage(), v2.RandomAffine(10, (0.1, 0.1)), v2.ToDtype(torch.float32, scale=True)])
plain = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


class Digits(Dataset[tuple[Tensor, int]]):
    """8 x 8 pictures as uint8 arrays (8, 8, 1), and what they show."""

    def __init__(self, split: slice, transform: v2.Transform) -> None:
        digits = load_digits()
        self.images = (digits.images[split, ..., None] * 15).astype("uint8")
        self.labels = digits.target[split].tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 16, 10),
        )  # fmt: skip

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        right = (self.net(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, prog_bar=True, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class StopAfter(pl.Callback):
    """Kill the process as a preempted machine does."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.steps:
            raise SystemExit(f"stopped after {self.steps} steps, as told")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/image_classification_lightning"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--resume", metavar="CHECKPOINT", help="a file, or 'last'")
    parser.add_argument("--stop-after", type=int, metavar="STEPS")
    given = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    data = lk.DataModule(
        train=Digits(slice(TRAIN), augment),
        val=Digits(slice(TRAIN, None), plain),
        loader=lk.LoaderConfig(
            batch_size=given.batch_size, num_workers=given.workers, persistent_workers=given.workers > 0
        ),
    )
    callbacks: list[pl.Callback] = [
        ModelCheckpoint(given.folder, every_n_train_steps=20, save_last=True, enable_version_counter=False),
        lk.SeedSteps(),  # dropout draws the same numbers after a resume
    ]
    if given.stop_after is not None:
        callbacks.append(StopAfter(given.stop_after))
    trainer = pl.Trainer(
        max_epochs=given.epochs,
        accelerator="auto",
        devices=given.devices,
        callbacks=callbacks,
        logger=False,
        enable_model_summary=False,
        default_root_dir=given.folder,
    )
    checkpoint = given.folder / "last.ckpt" if given.resume == "last" else given.resume
    trainer.fit(Classifier(), datamodule=data, ckpt_path=checkpoint)
    print(f"{trainer.global_step} steps, accuracy {trainer.callback_metrics['accuracy']:.3f}")


if __name__ == "__main__":
    main()
