"""Lightning Fabric: a run that is killed resumes in the middle of an epoch, also on another number of ranks.

    python examples/fabric_digits.py --kill-after 40
    python examples/fabric_digits.py

The first command trains on two ranks (DDP) with gradient accumulation. After 40 optimizer steps it kills all ranks (SIGKILL).
The second continues after the last checkpoint, and prints a digest of the final weights. A run without a kill prints the
same digest (use another `--folder`). `--ranks` may change in between: the samples that were left then still come once.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessExitedException

import loaderkit as lk

EPOCHS, TRAIN = 2, 1201
ACCUMULATE = 2  # batches in an optimizer step
SAVE_EVERY = 5  # optimizer steps


class Digits:
    """Pictures with random noise."""

    def __init__(self, rows: slice, noise: float) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.data[rows], dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target[rows])
        self.noise = noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.images[index] + self.noise * torch.randn(64)
        return {"id": index, "image": image, "label": self.labels[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/fabric_digits"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)

    # On GPUs: strategy="ddp", and launch() without a function.
    strategy = "ddp_fork" if given.ranks > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=given.ranks, strategy=strategy)
    try:
        fabric.launch(train, given.folder, given.kill_after)  # type: ignore[arg-type]  # Fabric types launch too narrowly
    except ProcessExitedException as error:
        raise SystemExit(f"killed: {error}") from None


def train(fabric: Fabric, folder: Path, kill_after: int | None) -> None:
    torch.set_num_threads(1)
    fabric.seed_everything(0, verbose=False)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    loader = lk.integrations.fabric.setup(fabric, lk.Loader(Digits(slice(TRAIN), 0.1), batch_size=8, shuffle=True))
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "step": 0}
    if (folder / "last.ckpt").exists():
        lk.integrations.fabric.load(fabric, folder / "last.ckpt", state)
        fabric.print(f"resumed after step {state['step']}, epoch {loader.cursor.epoch}, batch {loader.cursor.batches}")

    record = folder / f"rank-{fabric.global_rank}-of-{fabric.world_size}.jsonl"
    while (epoch := loader.cursor.epoch) < EPOCHS:
        for batch in loader:
            with record.open("a") as file:
                file.write(json.dumps({"epoch": epoch, "step": state["step"], "ids": batch["id"].tolist()}) + "\n")
            cursor = loader.cursor  # after an epoch's last batch, it is at the start of the next epoch
            learns = cursor.batches % ACCUMULATE == 0
            torch.manual_seed(lk.derive_seed("dropout", cursor.epoch, cursor.batches, fabric.global_rank))
            with fabric.no_backward_sync(model, enabled=not learns):
                fabric.backward(nn.functional.cross_entropy(model(batch["image"]), batch["label"]) / ACCUMULATE)
            if not learns:
                continue
            optimizer.step()
            optimizer.zero_grad()
            state["step"] += 1
            if state["step"] == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            if state["step"] % SAVE_EVERY == 0 or cursor.epoch == EPOCHS:
                fabric.save(folder / "last.ckpt", state)  # without gradients: only after an optimizer step

    right, samples = evaluate(fabric, model)
    weights = b"".join(value.numpy().tobytes() for value in net.state_dict().values())
    fabric.print(f"{right} of {samples} are right")
    fabric.print(f"{state['step']} steps, final weights: {hashlib.blake2b(weights, digest_size=8).hexdigest()}")


@torch.no_grad()
def evaluate(fabric: Fabric, model: nn.Module) -> tuple[int, int]:
    """Return how many samples are right, of how many: each sample counts once over all ranks."""
    model.eval()
    loader = lk.integrations.fabric.setup(fabric, lk.Loader(Digits(slice(TRAIN, None), 0), batch_size=64))
    counts = torch.zeros(2, dtype=torch.int64)
    for batch in loader:
        right: Tensor = model(batch["image"]).argmax(dim=1) == batch["label"]
        counts += torch.tensor([right.sum(), len(right)])
    total = fabric.all_reduce(counts, reduce_op="sum")  # batches differ in size: no mean of means
    return int(total[0]), int(total[1])


if __name__ == "__main__":
    main()
