"""Ray Train: Ray starts workers again after a kill, and the training continues in the middle of an epoch.

    python examples/ray_train_digits.py --kill-after 23 41
    python examples/ray_train_digits.py --folder runs/whole

The first command trains on two workers of a cluster on this machine. After 23 and after 41 steps a worker is killed (SIGKILL).
Ray starts the workers again, and they load the last checkpoint. Both commands print the same digest of the final weights.
At the end the workers evaluate a test set together: the metrics are those of one process, which are printed too.
With `--max-failures 0` Ray gives up instead. A second command for the same folder then resumes, also with another number
of `--workers`.
"""

import argparse
import hashlib
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from sklearn.datasets import load_digits
from torch import nn

import loaderkit as lk

TRAIN, TEST = slice(601), slice(601, 1196)  # 595 samples, which neither 2 nor 3 workers can share evenly
SAVE_EVERY = 5  # steps


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


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


def train(config: dict[str, Any]) -> Any:
    """Train in one of Ray's workers, and return the sums of `evaluate` over all of them."""
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    net = make_net()
    model: nn.Module = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = lk.integrations.ray.prepare(lk.Loader(Digits(TRAIN, 0.1), batch_size=16, shuffle=True))
    step = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"), weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]

    while (epoch := loader.cursor.epoch) < config["epochs"]:
        for batch in loader:
            torch.manual_seed(lk.derive_seed("dropout", step, rank))
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            with Path(config["folder"], f"rank-{rank}.jsonl").open("a") as file:
                file.write(json.dumps({"epoch": epoch, "step": step, "ids": batch["id"].tolist()}) + "\n")
            if step in config["kill_after"] and rank == 0 and is_first_time(config["folder"], step):
                os.kill(os.getpid(), signal.SIGKILL)
            if step % SAVE_EVERY == 0 or loader.cursor.epoch == config["epochs"]:
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                report({**state, "loader": loader.state_dict()})  # on all ranks

    test = lk.Loader(Digits(TEST, 0), batch_size=64)
    sums = evaluate(net, lk.integrations.ray.prepare(test))
    torch.distributed.all_reduce(sums)
    return sums.tolist()


@torch.no_grad()
def evaluate(net: nn.Module, loader: lk.Loader[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Return the number of samples that this process reads, how many of them are right, and the sum of their losses."""
    net.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for batch in loader:
        scores, labels = net(batch["image"]).double(), batch["label"]
        loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
        sums += torch.stack([torch.tensor(len(labels)), (scores.argmax(1) == labels).sum(), loss])
    return sums


def report(state: dict[str, Any]) -> None:
    """Report a step to Ray; rank 0 adds the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(state, Path(folder, "state.pt"))
            checkpoint = Checkpoint.from_directory(folder)
        ray.train.report({"step": state["step"]}, checkpoint=checkpoint)


def is_first_time(folder: str, step: int) -> bool:
    """Return whether no worker was killed at this step before."""
    try:
        Path(folder, f"killed-{step}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/ray_train_digits"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-failures", type=int, default=-1, help="after which Ray gives up (default: never)")
    parser.add_argument("--kill-after", type=int, nargs="*", default=[], metavar="STEP")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    folder = str(given.folder.resolve())

    ray.init(num_cpus=given.workers, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"folder": folder, "epochs": given.epochs, "kill_after": given.kill_after},
        scaling_config=ScalingConfig(num_workers=given.workers),
        # A run of this name that failed is continued.
        run_config=RunConfig("digits", folder, failure_config=FailureConfig(max_failures=given.max_failures)),
    )
    result: Any = trainer.fit()
    with result.checkpoint.as_directory() as saved:
        state = torch.load(Path(saved, "state.pt"), weights_only=True)
    weights = b"".join(value.numpy().tobytes() for value in state["model"].values())
    print(f"{len(list(given.folder.glob('killed-*')))} kills, {state['step']} steps")
    print(f"final weights: {hashlib.blake2b(weights, digest_size=8).hexdigest()}")
    net = make_net()
    net.load_state_dict(state["model"])
    alone = evaluate(net, lk.Loader(Digits(TEST, 0), batch_size=64)).tolist()
    for who, (samples, right, loss) in (("the workers", result.return_value), ("one process", alone)):
        print(f"test set, by {who}: {right:.0f} of {samples:.0f} are right, loss {loss / samples:.4f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
