"""What several tests share: under Lightning: evaluation and prediction over ranks, the batch-size finder, loaders without a DataModule."""

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics


class Evaluated(pl.LightningModule):
    """Writes down what it sees, and a mean over samples."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        # `self.log(..., sync_dist=True)` of Lightning 2.6.6 rounds the mean number of samples a rank down.
        self.mean = torchmetrics.MeanMetric().set_dtype(torch.float64)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.mean.update(batch["x"].sum(dim=1).double())
        self.log("metric", self.mean, on_epoch=True)
        self.write(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.write(batch)
        ids: torch.Tensor = batch["id"]
        return ids

    def write(self, batch: Any) -> None:
        with Path(self.folder, f"seen-{self.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps(batch["id"].tolist()) + "\n")

    def on_validation_end(self) -> None:
        Path(self.folder, "metric.txt").write_text(repr(float(self.trainer.callback_metrics["metric"])))


def quiet_trainer(job: dict[str, Any], **settings: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=job["dir"],
        **settings,
    )


def seen(folder: Path, rank: int) -> list[list[int]]:
    return [json.loads(line) for line in (folder / f"seen-{rank}.jsonl").read_text().splitlines()]
