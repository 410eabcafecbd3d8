"""Two processes train together (DDP), are killed in the middle of an epoch, and one goes on alone.

    python examples/ddp.py

The checkpoint that rank 0 wrote is right for every number of ranks. The script prints how often each
sample was trained on in the epoch: exactly once, by two ranks before the kill and by one after it.
"""

import argparse
import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessException

import loaderkit as lk


class Classifier(pl.LightningModule):
    """Writes down which samples each rank trains on, and kills its process after some steps."""

    def __init__(self, record: Path, kill_after: int | None = None) -> None:
        super().__init__()
        self.record = record
        self.kill_after = kill_after
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        if self.global_step == self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        line = {"step": self.global_step, "rank": self.global_rank, "ids": batch["id"].tolist()}
        with self.record.with_name(f"{self.record.name}-{self.global_rank}").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return nn.functional.cross_entropy(self.net(batch["image"]), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/ddp"))
    parser.add_argument("--samples", type=int, default=1797)
    given = parser.parse_args()
    torch.set_num_threads(1)
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)

    try:
        fit(given.folder / "two", given.samples, ranks=2, kill_after=15)
    except ProcessException:
        print("two ranks: killed in the middle of the epoch")
    checkpoint = given.folder / "two" / "last.ckpt"
    saved = torch.load(checkpoint, weights_only=True)["global_step"]
    print(f"one rank goes on from the checkpoint at step {saved}")
    fit(given.folder / "one", given.samples, ranks=1, resume_from=checkpoint)

    before = [step for step in steps_of(given.folder / "two") if step["step"] < saved]
    after = steps_of(given.folder / "one")
    times = Counter(sample for step in before + after for sample in step["ids"])
    print(f"{sum(len(s['ids']) for s in before)} samples by two ranks, {sum(len(s['ids']) for s in after)} by one")
    print(f"{len(times)} of {given.samples} samples trained, each {' or '.join(map(str, set(times.values())))} time(s)")
    if len(times) != given.samples or set(times.values()) != {1}:
        raise SystemExit("not every sample exactly once")
    print("every sample exactly once")


def fit(
    folder: Path, samples: int, *, ranks: int, kill_after: int | None = None, resume_from: Path | None = None
) -> None:
    """Train one epoch."""
    folder.mkdir()
    digits = load_digits()
    columns = {
        "id": torch.arange(samples),
        "image": torch.tensor(digits.data[:samples], dtype=torch.float32) / 16,
        "label": torch.tensor(digits.target[:samples]),
    }
    data = lk.DataModule(lk.ArrayDataset(columns), loader=lk.LoaderConfig(batch_size=16))
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp_fork" if ranks > 1 else "auto",  # on GPUs: "ddp"
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=10, save_last=True), lk.SeedSteps()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    pl.seed_everything(0, verbose=False)
    trainer.fit(Classifier(folder / "steps", kill_after), datamodule=data, ckpt_path=resume_from)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.glob("steps-*") for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
