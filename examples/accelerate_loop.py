"""A training loop under Hugging Face Accelerate that resumes in the middle of an epoch.

    python examples/accelerate_loop.py --kill-after 30
    python examples/accelerate_loop.py

The first command trains on scikit-learn's handwritten digits, with an accumulation of 4 batches. It saves every 8 batches and
kills itself (SIGKILL). The second continues after the last checkpoint and prints a digest of the final weights. A run without
interruption prints the same digest:

    python examples/accelerate_loop.py --folder runs/whole

`lk.integrations.accelerate.prepare` takes the loaders; the model and the optimizer go to `accelerator.prepare` as ever. There is
no `skip_first_batches`: the loaders are part of `save_state` and `load_state`. On two ranks:

    torchrun --nproc-per-node 2 examples/accelerate_loop.py --folder runs/two
"""

import argparse
import hashlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn

import loaderkit as lk

EPOCHS, BATCH, SAVE_EVERY = 2, 32, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/accelerate_loop"))
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--kill-after", type=int, metavar="BATCHES")
    given = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=not torch.accelerator.is_available())
    digits = load_digits()
    data = lk.ArrayDataset({"x": torch.tensor(digits.data).float() / 16, "y": torch.tensor(digits.target)})
    parts = lk.split(data, {"train": 0.8, "val": 0.2}, seed=0)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
    model, optimizer = accelerator.prepare(network, torch.optim.Adam(network.parameters(), lr=0.01))
    train = lk.Loader(parts["train"], BATCH, shuffle=True, num_workers=given.workers)
    train = lk.integrations.accelerate.prepare(accelerator, train)
    val = lk.integrations.accelerate.prepare(accelerator, lk.Loader(parts["val"], BATCH), evaluation=True)

    saved = max(given.folder.glob("[0-9]*"), default=None)
    if saved is not None:
        accelerator.load_state(str(saved))
        accelerator.print(f"resumed at epoch {train.cursor.epoch}, batch {train.cursor.batches} of {len(train)}")
    batches = 0
    while train.cursor.epoch < EPOCHS:
        for batch in train:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(batch["x"]), batch["y"]))
                optimizer.step()
                optimizer.zero_grad()
            if train.cursor.batches % SAVE_EVERY == 0 and accelerator.sync_gradients:
                save(accelerator, given.folder / f"{train.cursor.epoch}-{train.cursor.batches:04d}")
            batches += 1
            if batches == given.kill_after:
                print(f"killed after batch {train.cursor.batches} of epoch {train.cursor.epoch}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        accelerator.print(f"epoch {train.cursor.epoch}: {accuracy(accelerator, model, val)}")
    weights = b"".join(value.numpy(force=True).tobytes() for value in network.state_dict().values())
    accelerator.print(f"final weights: {hashlib.sha256(weights).hexdigest()[:16]}")
    accelerator.end_training()


def accuracy(accelerator: Accelerator, model: nn.Module, loader: Any) -> str:
    """Return how many digits are right, of the digits of all ranks: each counts once."""
    model.eval()
    right: list[bool] = []
    with torch.no_grad():
        for batch in loader:
            found = model(batch["x"]).argmax(1) == batch["y"]
            right += accelerator.gather_for_metrics(found).tolist()
    model.train()
    return f"{sum(right)} of {len(right)} digits are right"


def save(accelerator: Accelerator, checkpoint: Path) -> None:
    """Write a checkpoint under another name first, so that a kill never leaves half of one."""
    part = checkpoint.with_name("part")
    accelerator.save_state(str(part))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(checkpoint, ignore_errors=True)
        part.rename(checkpoint)
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
