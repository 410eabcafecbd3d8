"""Pictures from tar shards, with augmentation: killed, resumed, and the same to the last bit.

    python examples/pictures_from_tar.py --kill-after 40
    python examples/pictures_from_tar.py --workers 0

Writes scikit-learn's handwritten digits as PNG into tar shards, as WebDataset lays them out: `000000001.png`, `000000001.cls`. Workers
decode and turn them; they go to the device as uint8 and are normalised there. The second command resumes after
the last checkpoint, here without workers, and ends with the weights of a run that was never killed.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torchvision.transforms import v2

import loaderkit as lk

HELD_OUT = 297


class Classifier(pl.LightningModule):
    def __init__(self, num_classes: int, kill_after: int | None) -> None:
        super().__init__()
        self.kill_after = kill_after
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 64, num_classes),
        )  # fmt: skip

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if self.global_step == self.kill_after:
            print(f"killed in epoch {self.current_epoch}, before batch {batch_idx}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean(), batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def write_shards(folder: Path) -> None:
    """Write the digits into shards, the last ones for validation; existing shards stay."""
    digits = load_digits()
    columns = {"png": (digits.images * 15).astype("uint8"), "cls": digits.target}
    for name, rows in (("train", slice(0, -HELD_OUT)), ("val", slice(-HELD_OUT, None))):
        part = lk.ArrayDataset({field: column[rows] for field, column in columns.items()})
        lk.write_shards(part, folder / name, format="tar", samples_per_shard=250)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/pictures_from_tar"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()
    write_shards(given.folder / "digits")
    data = lk.ImageDataModule(
        given.folder / "digits",
        classes=[str(digit) for digit in range(10)],
        size=16,
        train_transform=v2.RandomAffine(10, (0.1, 0.1)),
        mean=(0.3, 0.3, 0.3),
        std=(0.4, 0.4, 0.4),
        loader=lk.LoaderConfig(batch_size=32, num_workers=given.workers),
    )
    pl.seed_everything(0, verbose=False)
    callbacks: list[Any] = [
        ModelCheckpoint(given.folder, every_n_train_steps=15, save_last=True, enable_version_counter=False),
        lk.SeedSteps(),
    ]
    trainer = pl.Trainer(
        max_epochs=given.epochs,
        accelerator="auto",
        devices=1,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=given.folder,
    )
    model = Classifier(data.num_classes, given.kill_after)
    saved = given.folder / "last.ckpt"
    trainer.fit(model, datamodule=data, ckpt_path=saved if saved.exists() else None)
    weights = hashlib.sha256(b"".join(value.numpy(force=True).tobytes() for value in model.state_dict().values()))
    print(f"{trainer.global_step} steps, accuracy {trainer.callback_metrics['accuracy']:.3f}")
    print(f"final weights: {weights.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
