"""A table with numbers and categories: the checkpoint holds what turns columns into numbers, and predicts alone.

    python examples/table_csv.py

Trains on scikit-learn's wines, from a CSV file. The file is then deleted, and the checkpoint predicts
wines that have no label: means, deviations, categories and classes are read from it.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_wine
from torch import Tensor, nn

import loaderkit as lk

SOILS = ("clay", "slate", "sand")


class Classifier(pl.LightningModule):
    """An embedding for each categorical column, joined with the numeric columns."""

    def __init__(self, num_numeric: int, cardinalities: list[int], num_classes: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 4) for size in cardinalities)
        self.net = nn.Sequential(
            nn.Linear(num_numeric + 4 * len(cardinalities), 32), nn.ReLU(), nn.Linear(32, num_classes)
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        embedded = [layer(batch["categorical"][:, place]) for place, layer in enumerate(self.embeddings)]
        logits: Tensor = self.net(torch.cat([batch["numeric"], *embedded], dim=1))
        return logits

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch), batch["target"])

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        found: Tensor = self(batch).argmax(1)
        return found

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/table"))
    parser.add_argument("--epochs", type=int, default=15)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    path, saved = given.folder / "wines.csv", given.folder / "last.ckpt"
    rows = wines()
    held_out, train = rows[::4], [row for number, row in enumerate(rows) if number % 4]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(train)

    pl.seed_everything(0, verbose=False)
    data = lk.TableDataModule(path, columns=lk.TableColumns(target="cultivar"), loader=lk.LoaderConfig(batch_size=16))
    print(f"{data.num_numeric} numeric columns, categories {data.statistics.categorical}, classes {data.classes}")
    trainer = make_trainer(given.folder, given.epochs)
    trainer.fit(Classifier(data.num_numeric, data.cardinalities, data.num_classes), datamodule=data)

    path.unlink()  # from here on only the checkpoint is left
    columns = {name: [row[name] for row in held_out] for name in rows[0] if name != "cultivar"}
    data = lk.TableDataModule.load_from_checkpoint(saved, predict=columns, loader=lk.LoaderConfig(batch_size=16))
    outputs: Any = make_trainer(given.folder, 0).predict(Classifier.load_from_checkpoint(saved), datamodule=data)
    predicted = [data.classes[code] for code in torch.cat(outputs).tolist()]
    right = sum(row["cultivar"] == found for row, found in zip(held_out, predicted, strict=True))
    print(f"first predictions: {', '.join(map(str, predicted[:3]))}")
    print(f"{right} of {len(held_out)} wines right, from the checkpoint alone")


def wines() -> list[dict[str, Any]]:
    """Return each wine's measurements, its cultivar, and a column of text (made up, from its colour)."""
    data = load_wine()
    return [
        dict(zip(data.feature_names, numbers.tolist(), strict=True))
        | {"soil": SOILS[int(numbers[9]) % 3], "cultivar": "ABC"[label]}
        for numbers, label in zip(data.data, data.target, strict=True)
    ]


def make_trainer(folder: Path, epochs: int) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="auto",
        devices=1,
        callbacks=[ModelCheckpoint(folder, save_last=True, enable_version_counter=False), lk.SeedSteps()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


if __name__ == "__main__":
    main()
