"""`pytorch_lightning` in place of `lightning.pytorch`: a run that is killed resumes in the middle of an epoch.

    python examples/pytorch_lightning_digits.py --kill-after 60
    python examples/pytorch_lightning_digits.py

The first command is killed in its second epoch (SIGKILL). The second continues after the last checkpoint, and prints a
digest of the final weights. A run without a kill prints the same digest (use another `--folder`).

The two packages hold the same code. A DataModule of loaderkit belongs to the one that is imported first.
`--torch-loader` shows what torch's DataLoader does.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import loaderkit as lk


class Digits(Dataset[dict[str, Any]]):
    """Pictures with random noise."""

    def __init__(self) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.data[:1500], dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target[:1500])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.images[index] + 0.1 * torch.randn(64), "label": self.labels[index]}


class Classifier(pl.LightningModule):
    def __init__(self, kill_after: int | None) -> None:
        super().__init__()
        self.kill_after = kill_after
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        if self.global_step == self.kill_after:
            print(f"killed in epoch {self.current_epoch}, before batch {batch_idx}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(self.net(batch["image"]), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/pytorch_lightning_digits"))
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    parser.add_argument("--torch-loader", action="store_true")
    given = parser.parse_args()

    torch.set_num_threads(1)
    pl.seed_everything(0, verbose=False)
    model = Classifier(given.kill_after)
    if given.torch_loader:
        data: Any = DataLoader(Digits(), batch_size=32, shuffle=True)
    else:
        data = lk.DataModule(Digits(), loader=lk.LoaderConfig(batch_size=32))
    saving = ModelCheckpoint(given.folder, every_n_train_steps=7, save_last=True, enable_version_counter=False)
    callbacks: list[Any] = [saving, lk.SeedSteps()]  # a type checker takes loaderkit's for those of lightning.pytorch
    trainer = pl.Trainer(
        max_epochs=2,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data, ckpt_path="last")
    weights = [value.numpy().tobytes() for value in model.state_dict().values()]
    digest = hashlib.blake2b(b"".join(weights), digest_size=8).hexdigest()
    print(f"{trainer.global_step} steps, final weights: {digest}")


if __name__ == "__main__":
    main()
