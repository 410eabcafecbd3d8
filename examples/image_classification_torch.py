"""Image classification in a plain torch loop that resumes in the middle of an epoch.

    python examples/image_classification_torch.py --kill-after 70
    python examples/image_classification_torch.py --resume

The first command trains on scikit-learn's handwritten digits, saves every 20 steps, and kills itself
(SIGKILL) in its second epoch. The second continues after the last checkpoint. It prints a digest of the
final weights. A run without interruption prints the same digest:

    python examples/image_classification_torch.py

For the loader, add `loader.state_dict()` to the checkpoint next to the model's, and call
`loader.load_state_dict()` before the loop. `--workers` and `--batch-size` may change in between.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.transforms import v2

import loaderkit as lk

TRAIN = 1500
SAVE_EVERY = 20  # steps


class Digits(Dataset[dict[str, Any]]):
    """8 x 8 pictures, turned and shifted at random."""

    augment = v2.RandomAffine(degrees=10, translate=(0.1, 0.1))

    def __init__(self) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.images[:TRAIN], dtype=torch.float32)[:, None] / 16
        self.labels = torch.tensor(digits.target[:TRAIN])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.augment(self.images[index]), "label": self.labels[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path("runs/image_classification_torch.pt"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = lk.Loader(Digits(), given.batch_size, shuffle=True, num_workers=given.workers, device=device)
    if given.resume:
        load(given.checkpoint, model, optimizer, loader)
        print(f"resumed at epoch {loader.cursor.epoch}, batch {loader.cursor.batches} of {len(loader)}")

    loss = torch.zeros(())
    while (epoch := loader.cursor.epoch) < given.epochs:
        for batch in loader:
            # After an epoch's last batch the cursor is at the start of the next epoch.
            step = loader.cursor.epoch * len(loader) + loader.cursor.batches
            torch.manual_seed(lk.derive_seed("step", step))  # the dropout's, on every device
            loss = train_on(batch, model, optimizer)
            if step % SAVE_EVERY == 0:
                save(given.checkpoint, model, optimizer, loader)
            if step == given.kill_after:
                print(f"killed in epoch {loader.cursor.epoch}, after batch {loader.cursor.batches}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    print(f"final weights: {digest(model)}")


def train_on(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: lk.Loader) -> None:
    """Write a checkpoint atomically: a kill never leaves a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
    }
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: lk.Loader) -> None:
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])


def digest(model: nn.Module) -> str:
    weights = [value.detach().cpu().numpy().tobytes() for value in model.state_dict().values()]
    return hashlib.blake2b(b"".join(weights), digest_size=8).hexdigest()


if __name__ == "__main__":
    main()
