"""Training from the command line: LightningCLI, your own DataModule, and a YAML file.

    python examples/cli/main.py fit --config examples/cli/config.yaml
    python examples/cli/main.py fit --config examples/cli/config.yaml --data.loader.num_workers 2
    python examples/cli/main.py fit --config examples/cli/config.yaml --ckpt_path runs/cli/last.ckpt --trainer.max_epochs 4
    python examples/cli/main.py validate --config examples/cli/config.yaml --ckpt_path runs/cli/last.ckpt

Every setting of a loader is one of `lk.LoaderConfig`; `--help` lists them.
"""

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LightningCLI
from sklearn.datasets import load_digits
from torch import Tensor, nn

import loaderkit as lk


class Digits(lk.DataModule):
    """Scikit-learn's handwritten digits.

    Args:
        loader: How to load them.
        held_out: How many digits are kept for validation.
    """

    def __init__(self, loader: lk.LoaderConfig, held_out: int = 297) -> None:
        digits = load_digits()
        images = torch.tensor(digits.data, dtype=torch.float32) / 16
        labels = torch.tensor(digits.target)
        train, val = slice(len(images) - held_out), slice(len(images) - held_out, None)
        super().__init__(
            lk.ArrayDataset((images[train], labels[train])),
            val=lk.ArrayDataset((images[val], labels[val])),
            loader=loader,
        )


class Classifier(pl.LightningModule):
    """Two layers and dropout.

    Args:
        hidden: Width of the hidden layer.
        lr: Learning rate.
    """

    def __init__(self, hidden: int = 128, lr: float = 0.1) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        right = (self.net(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def main() -> None:
    cli = LightningCLI(Classifier, Digits, save_config_kwargs={"overwrite": True})
    if cli.subcommand == "fit":
        print(f"{cli.trainer.global_step} steps, accuracy {cli.trainer.callback_metrics['accuracy']:.3f}")


if __name__ == "__main__":
    main()
